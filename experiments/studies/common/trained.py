"""Studies that train a grid of configs over seeds."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path

from matplotlib.figure import Figure

from fedsim.config import Config, load_config, with_settings
from fedsim.data.split import Split
from fedsim.errors import RunsFailedError
from fedsim.experiments.studies.common.output import Records, Result, Study, Table
from fedsim.materials import load_materials
from fedsim.planner.variants import changed
from fedsim.registry import names
from fedsim.report.comparison_folder import write_grid
from fedsim.report.differences import differences_table
from fedsim.report.grid_result import GridResult, captions, grid_table, records
from fedsim.sweep.cells import Cell, Variation
from fedsim.sweep.jobs import Runner, one_after_another
from fedsim.sweep.measure import measure
from fedsim.sweep.ray import OnRay
from fedsim.utils.files import write_atomically

CONFIG = files("fedsim.experiments") / "configs" / "study.toml"
PRETRAINED = files("fedsim.experiments") / "configs" / "study-pretrained.toml"
RUNS, MEASUREMENT = "runs", "measurement.json"
QUICK = ("strategy.rounds=2", "data.held_out_limit=1", "training.evaluate_every=2")
QUICK_START = "model.pretraining_steps=10"  # only for a built-in model


@dataclass(frozen=True)
class Trained:
    """A study that trains, as registered under `fedsim.studies`; a call runs it.

    Attributes:
        name: registered name.
        title: one line on the comparison.
        explanation: Markdown on the result, the paper's section and its claim.
        cells: function that yields the grid, quick or whole.
        draw: function that draws the picture.
        notes: one-line counts and means over the lines.
        more: further CSV files by name.
        further: further tables of the page, by their head.
        settings: further sentences on fixed settings.
        keys: tuned keys with their values; each cell is tuned separately.
        quick_keys: the same for a quick run, with one value per key.
        seeds: number of repetitions of every line.
        quick_seeds: number of repetitions in a quick run.
        options: command-line options, as shown on the page.
        compares: whether to write the files of `fedsim compare`, too.
    """

    name: str
    title: str
    explanation: str | None
    cells: Callable[[bool], Iterable[Cell]]
    draw: Callable[[GridResult], Figure]
    notes: Callable[[GridResult], Sequence[str]] = lambda _: ()
    more: Callable[[GridResult], Mapping[str, Records]] = lambda _: {}
    further: Callable[[GridResult], Mapping[str, Table]] = lambda _: {}
    settings: Sequence[str] = ()
    keys: Sequence[Variation] = ()
    quick_keys: Sequence[Variation] = ()
    seeds: int = 3
    quick_seeds: int = 1
    options: str = ""
    compares: bool = False

    def __call__(self, out: Path, *, quick: bool) -> None:
        """Run the unfinished cells, and write the study; runs stay in `out/runs`.

        Raises:
            ConfigError: `out` is not a folder for a study.
            RunsFailedError: a run failed; the results of the others are written.
        """
        work = partial(self.compute, out)
        Study(self.name, self.title, self.explanation, work, self.options)(out, quick=quick)
        done = GridResult.model_validate_json((out / MEASUREMENT).read_text(encoding="utf-8"))
        if self.compares:
            write_grid(done, out)
        if failures := [reason for line in done.lines for reason in line.failures]:
            raise RunsFailedError("\n".join(failures))

    def compute(self, out: Path, quick: bool) -> Result:
        """Run the unfinished cells in `out/runs`, and write `out/measurement.json`."""
        grid = [*self.cells(quick)]
        measurement = measure(
            grid,
            out / RUNS,
            keys=self.quick_keys if quick else self.keys,
            seeds=self.quick_seeds if quick else self.seeds,
            runner=one_after_another if quick else side_by_side(),
        )
        write_atomically(out / MEASUREMENT, f"{measurement.model_dump_json(indent=2)}\n")
        tuning, pairs = measurement.tuning, differences_table(measurement)
        table = grid_table(measurement)
        settings = [
            *self.settings,
            *captions(measurement),
            f"{len(grid)} settings, seeds {', '.join(map(str, measurement.seeds))}; "
            f"{sum(line.seconds for line in measurement.lines):,.0f} s of runs"
            + (f" and {tuning.seconds:,.0f} s of tuning" if tuning else ""),
        ]
        return Result(
            settings=settings,
            table=Table(table.heads, table.rows),
            records=records(measurement),
            figure=self.draw(measurement),
            notes=self.notes(measurement),
            more=self.more(measurement),
            further={
                **self.further(measurement),
                **({} if pairs is None else {"Differences": pairs}),
            },
        )


def base(*overrides: str, model: str | None = None) -> Config:
    """Return the base config of all studies, with overrides `key.path=value`.

    Args:
        overrides: `key.path=value`.
        model: folder, GGUF file or hub id of a pre-trained model, to train its adapters; None
            for the small network of the studies.
    """
    with as_file(CONFIG if model is None else PRETRAINED) as path:
        config = load_config(path, overrides, noise="seeded")
    return config if model is None else changed(config, model={"name_or_path": model})


def cell(source: str, settings: Mapping[str, object], config: Config, quick: bool) -> Cell:
    """Return a cell named after its settings; a quick cell trains two rounds."""
    texts = tuple((key, str(value)) for key, value in settings.items())
    name = ",".join([source, *(f"{key}={value}" for key, value in texts)])
    return Cell(name, quick_config(config) if quick else config, source, texts)


def quick_config(config: Config) -> Config:
    """Return the config with two rounds, little held-out text, and short (if any) pre-training."""
    built_in = config.model.name_or_path in names("models")
    return with_settings(config, (*QUICK, QUICK_START) if built_in else QUICK)


def split_of(config: Config) -> Split:
    """Return the split of a config's texts into training users and examples."""
    if config.model.name_or_path in names("models"):  # only its tokenizer is needed
        config = with_settings(config, [QUICK_START])
    return load_materials(config.seed, config.data, config.model, "cpu").split


def side_by_side() -> Runner:
    """Return a runner with one run per core if Ray is installed, as these runs are small."""
    allowed = getattr(
        os, "sched_getaffinity", None
    )  # respects `taskset`; not available on every system
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    if cores == 1 or importlib.util.find_spec("ray") is None:
        return one_after_another
    return OnRay(workers=cores)
