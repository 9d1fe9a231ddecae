"""Studies that train: a grid measured over seeds, and what each such study leaves behind."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from matplotlib.figure import Figure

from experiments.studies.common.output import Shown, Study, check_folder, write_study
from fedsim.config import Config, load_config, with_settings
from fedsim.planner.variants import changed
from fedsim.report.grid_result import HEADS, GridResult, captions, cells, records
from fedsim.sweep.cells import Cell, Variation
from fedsim.sweep.jobs import Runner, one_after_another
from fedsim.sweep.measure import measure
from fedsim.sweep.ray import OnRay
from fedsim.utils.files import write_atomically

CONFIG = files("experiments") / "configs" / "study.toml"
RUNS = "runs"
QUICK = (
    "strategy.rounds=2",
    "model.pretraining_steps=10",
    "data.held_out_limit=1",
    "training.evaluate_every=2",
)


@dataclass(frozen=True)
class Trained:
    """A study that trains.

    Attributes:
        name: as registered.
        title: one line that says what is seen.
        explanation: paragraphs: what is shown, and of which paper's section.
        cells: the grid, quick or whole.
        keys: what is tuned, cell by cell.
        quick_keys: the same for a quick run; one value each.
        findings: sentences made from the numbers.
        draw: the picture.
        seeds: repetitions of a whole run; a quick one has one.
    """

    name: str
    title: str
    explanation: Sequence[str]
    cells: Callable[[bool], Sequence[Cell]]
    findings: Callable[[GridResult], Sequence[str]]
    draw: Callable[[GridResult], Figure]
    keys: Sequence[Variation] = ()
    quick_keys: Sequence[Variation] = ()
    seeds: int = 3


def base(*overrides: str) -> Config:
    """Return the config that the studies begin from, with `key.path=value` laid over it."""
    with as_file(CONFIG) as path:
        return load_config(path, overrides)


def with_noise(config: Config, noise_multiplier: float) -> Config:
    """Return the config with a noise multiplier in the place of its ε."""
    return changed(config, privacy={"epsilon": None, "noise_multiplier": noise_multiplier})


def cell(source: str, settings: Mapping[str, object], config: Config, quick: bool) -> Cell:
    """Return a cell called after its settings; a quick one trains hardly at all."""
    texts = tuple((key, str(value)) for key, value in settings.items())
    name = ",".join([source, *(f"{key}={value}" for key, value in texts)])
    return Cell(name, with_settings(config, QUICK) if quick else config, source, texts)


def carry_through(study: Trained, out: Path, *, quick: bool) -> GridResult:
    """Run what is not yet run, and write the study into `out`; the runs stay in `out/runs`.

    Raises:
        ConfigError: `out` is not a folder for a study.
    """
    check_folder(out)
    grid = study.cells(quick)
    measurement = measure(
        grid,
        out / RUNS,
        keys=study.quick_keys if quick else study.keys,
        seeds=1 if quick else study.seeds,
        runner=one_after_another if quick else _side_by_side(),
    )
    write_atomically(out / "measurement.json", f"{measurement.model_dump_json(indent=2)}\n")
    settings = [
        *captions(measurement),
        f"{len(grid)} settings, seeds {', '.join(map(str, measurement.seeds))}; "
        f"{sum(line.seconds for line in measurement.lines):,.0f} s of runs"
        + (f" and {measurement.tuning.seconds:,.0f} s of tuning" if measurement.tuning else ""),
    ]
    write_study(
        Study(
            name=study.name,
            title=study.title,
            explanation=study.explanation,
            settings=settings,
            findings=tuple(study.findings(measurement)),
            table=Shown(HEADS, [cells(line) for line in measurement.lines]),
            records=records(measurement),
            figure=study.draw(measurement),
        ),
        out,
        quick=quick,
    )
    return measurement


def _side_by_side() -> Runner:
    """A run a core, where Ray is there; a run of these is too small to use two."""
    if importlib.util.find_spec("ray") is None:
        return one_after_another
    return OnRay(workers=os.cpu_count())
