"""De et al. 2022, §3 and App. C, on text: does a private run end below its start, and how far?

*Defaults*: a config that says ε, δ, cohort, rounds, group and sequence length, and nothing of clip
or server; its learning rate is automatic. *Plan*: the config that `fedsim plan` writes for it, with
the same expected gradients. *Auto*: the plan's sizes and clip with the automatic rate. In some
cells a *grid* of twelve constant rates runs at the plan's sizes: Adam at three rates and two clip
norms, SGD at six rates. SGD has normalised updates of norm 1: there a clip norm only scales the
rate. The best of a grid is chosen on held-out text, which no ε here pays for.

`tiny-gpt` trains on the built-in text and on every file of `--data` (JSON lines, columns `user` and
`text`). A gain is the held-out loss at the start minus that at the end. The paper tunes rate and
clip for each ε, finds that the best rate falls with the noise, and leaves it constant.

The page of this repository has three files: the Ubuntu IRC logs of irc-disentanglement (Kummerfeld
et al. 2019, CC-BY-4.0) by nick; the changelogs of source packages of Debian 12 by maintainer
(`debian/changelog` of `apt-get source --diff-only`, an entry a row); the chats of PyPI's
chitchat-dataset 0.9.0 (MIT; Myers et al. 2020) by sender, a turn a row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Final

from matplotlib.figure import Figure

from fedsim.config import Config, parse_config
from fedsim.errors import ConfigError, RunsFailedError
from fedsim.experiments.studies.common.options import SCORED
from fedsim.experiments.studies.common.output import (
    Result,
    Study,
    Table,
    check_folder,
    legend,
    listed,
    panels,
)
from fedsim.experiments.studies.common.trained import MEASUREMENT, RUNS, quick_config, side_by_side
from fedsim.materials import materials_of
from fedsim.planner.compare_strategies import compare_strategies
from fedsim.report.grid_result import (
    INTERVAL_NOTE,
    CellResult,
    GridResult,
    records,
    with_reports,
)
from fedsim.report.intervals import Difference, difference
from fedsim.report.schema import load_report
from fedsim.report.style import INK, colour
from fedsim.report.tables import UTILITY_NOTE
from fedsim.report.wording import NOTHING, TOGETHER, duration_text
from fedsim.runner.folder import RunFolder
from fedsim.sweep.jobs import Job, carry_out, check_folders, one_after_another
from fedsim.utils.files import write_atomically
from fedsim.utils.locks import sole_writer

NAME, TITLE = "server-step", "The server's step: defaults and plan against tuned constant rates"
BASE: dict[str, dict[str, Any]] = {
    "data": {"source": "shakespeare", "cutting": "join", "sequence_length": 32},
    "model": {"name_or_path": "tiny-gpt"},
}
BUILT_IN = "shakespeare"
DEFAULTS, PLAN, AUTO = "defaults", "plan", "auto"
STEPS: Final[dict[str, dict[str, Any]]] = {
    **{
        f"adam {rate:g} clip {norm:g}": {
            "server": {"optimizer": "adam", "learning_rate": rate},
            "clip": {"kind": "flat", "l2_clip_norm": norm},
        }
        for rate, norm in product((0.001, 0.003, 0.01), (1.0, 4.0))
    },
    **{
        f"sgd {rate:g}": {
            "server": {"optimizer": "sgd", "learning_rate": rate},
            "clip": {"kind": "flat", "l2_clip_norm": 1.0, "normalise": True},
        }
        for rate in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
    },
}
"""The grid: constant rates, each with its clip."""
QUICK_STEPS = ("adam 0.003 clip 1", "sgd 0.4")
_FIXED = 2_000.0  # gradients that take about as long as the evaluations of a run

log = logging.getLogger("fedsim")


@dataclass(frozen=True)
class Corpus:
    """A text that is trained on; `file` is None for the built-in one."""

    name: str
    file: Path | None = None

    @cached_property
    def scored(self) -> float:
        """The share of users with held-out text: about `SCORED` of many users, else all."""
        users = materials_of(self.config(0, 1.0, 1, 8.0), device="cpu").split.num_users
        return float(f"{min(1.0, SCORED / users):.2g}")

    def config(
        self, seed: int, cohort: float, rounds: int, epsilon: float, scored: float = 1.0
    ) -> Config:
        """Return a config without clip and server."""
        columns = {"user_column": "user", "text_column": "text"}
        texts = {} if self.file is None else {"source": str(self.file), **columns}
        return parse_config(
            {
                **BASE,
                "seed": seed,
                "data": {**BASE["data"], **texts, "held_out_limit": 1, "held_out_from": scored},
                "strategy": {"rounds": rounds, "cohort_size": cohort, "group_size": 2},
                "privacy": {"epsilon": epsilon, "delta": 1e-5, "noise": "seeded"},
                "training": {
                    "evaluate_every": rounds,
                    "checkpoint_every": rounds,
                    "keep_checkpoints": 1,
                },
            }
        )


@dataclass(frozen=True)
class Setting:
    """What defaults, plan and grid have in common: a cell of the study, with its seeds."""

    corpus: Corpus
    cohort: float
    rounds: int
    epsilon: float

    @property
    def labels(self) -> dict[str, str]:
        """The settings as the table has them."""
        numbers = {"cohort": self.cohort, "rounds": self.rounds, "epsilon": self.epsilon}
        return {"data": self.corpus.name, **{key: f"{value:g}" for key, value in numbers.items()}}

    def name(self, way: str) -> str:
        """Return the name of a line; its runs are called after it."""
        return ",".join([way, *(f"{key}={value}" for key, value in self.labels.items())])


@dataclass(frozen=True)
class Stage:
    """Runs that are planned and carried out together; a page is written after each.

    Attributes:
        seed: of the runs.
        settings: their cells.
        ways: of every cell.
    """

    seed: int
    settings: Sequence[Setting]
    ways: Sequence[str]

    @property
    def cost(self) -> float:
        """The gradients of the stage, and what its evaluations add."""
        gradients = sum(2.0 * one.cohort * one.rounds + _FIXED for one in self.settings)
        return gradients * len(self.ways)


@dataclass(frozen=True)
class Scale:
    """Sizes of the study."""

    corpora: tuple[Corpus, ...]
    epsilons: tuple[float, ...] = (2.0, 8.0)
    cohorts: tuple[float, ...] = (32.0, 256.0)
    rounds: tuple[int, ...] = (30, 150)
    seeds: int = 3
    steps: tuple[str, ...] = tuple(STEPS)
    quick: bool = False

    def stages(self) -> list[Stage]:
        """Return all runs, seed by seed and the cheapest first.

        The grid is of the first seed and the smallest cohort: at the fewest rounds for every ε, at
        the most rounds for the largest ε.
        """
        stages = [
            Stage(seed, self._settings(cohort, rounds, self.epsilons), (DEFAULTS, PLAN))
            for seed, cohort, rounds in product(range(self.seeds), self.cohorts, self.rounds)
        ]
        grids = dict.fromkeys(
            [
                *((min(self.rounds), epsilon) for epsilon in sorted(self.epsilons, reverse=True)),
                (max(self.rounds), max(self.epsilons)),
            ]
        )
        for rounds, epsilon in grids:
            settings = self._settings(min(self.cohorts), rounds, (epsilon,))
            stages.append(Stage(0, settings, (AUTO, *self.steps)))
        return sorted(stages, key=lambda stage: (stage.seed, stage.cost))

    def _settings(self, cohort: float, rounds: int, epsilons: Sequence[float]) -> list[Setting]:
        return [
            Setting(corpus, cohort, rounds, epsilon)
            for corpus, epsilon in product(self.corpora, epsilons)
        ]


@dataclass(frozen=True)
class Line:
    """One way at one setting over its seeds, with the loss of each seed's start."""

    setting: Setting
    way: str
    result: CellResult
    starts: dict[int, float]

    @property
    def moved(self) -> Difference | None:
        """End minus start, paired by seed; None where no run ended with a finite loss."""
        return difference("end", "start", self.result.counted_losses, self.starts)

    @property
    def gains(self) -> dict[int, float]:
        """Start minus end, by seed."""
        return {seed: self.starts[seed] - end for seed, end in self.result.counted_losses.items()}


@dataclass
class Runs:
    """The runs of the study in a folder.

    Attributes:
        folder: of all runs.
        quick: whether they have two rounds and few users with held-out text.
    """

    folder: Path
    quick: bool
    _plans: dict[str, Config] = field(default_factory=dict)

    def jobs(self, stage: Stage) -> Iterator[Job]:
        """Yield the runs of a stage."""
        for setting, way in product(stage.settings, stage.ways):
            name = f"{setting.name(way)},seed={stage.seed}"
            yield Job(name, self._config(setting, way, stage.seed), (self.folder / name).resolve())

    def _config(self, setting: Setting, way: str, seed: int) -> Config:
        if way == DEFAULTS:
            return self._defaults(setting, seed)
        planned = self._planned(setting, seed)
        if way == PLAN:
            return planned
        raw = planned.model_dump(exclude_none=True)
        step = STEPS.get(way, {"server": {}, "clip": raw["strategy"]["clip"]})
        raw["server"], raw["strategy"]["clip"] = step["server"], step["clip"]
        return parse_config(raw)

    def _defaults(self, setting: Setting, seed: int) -> Config:
        sizes = setting.cohort, setting.rounds, setting.epsilon
        config = setting.corpus.config(seed, *sizes, setting.corpus.scored)
        return quick_config(config) if self.quick else config

    def _planned(self, setting: Setting, seed: int) -> Config:
        """Return the plan; that of a run that was begun before is in its folder."""
        name = f"{setting.name(PLAN)},seed={seed}"
        begun = RunFolder(self.folder / name)
        if name not in self._plans and begun.config.exists():
            self._plans[name] = begun.read_config()
        if name not in self._plans:
            log.info("%s: planning", name)
            config = self._defaults(setting, seed)
            materials = materials_of(config, device="cpu")
            self._plans[name] = compare_strategies(config, materials).planned
        return self._plans[name]

    def lines(self, stages: Sequence[Stage]) -> list[Line]:
        """Return the results of all finished runs."""
        seeds: dict[tuple[Setting, str], list[int]] = {}
        for stage in stages:
            for setting, way in product(stage.settings, stage.ways):
                folder = self.folder / f"{setting.name(way)},seed={stage.seed}"
                if RunFolder(folder).report.exists():
                    seeds.setdefault((setting, way), []).append(stage.seed)
        return [self._line(*key, sorted(found)) for key, found in seeds.items()]

    def _line(self, setting: Setting, way: str, seeds: Sequence[int]) -> Line:
        name = setting.name(way)
        reports = [load_report(self.folder / f"{name},seed={seed}") for seed in seeds]
        bare = CellResult(
            name=name,
            source=way,
            strategy=str(reports[0].settings.get("strategy.name", "")),
            settings=setting.labels,
            chosen={},
            seeds=tuple(seeds),
        )
        losses = [report.utility.initial.loss for report in reports]
        starts = dict(zip(seeds, losses, strict=True))
        return Line(setting, way, with_reports(bare, reports), starts)


@dataclass(frozen=True)
class Contest:
    """Gains of defaults, plan, auto and the best of the grid in one cell, of the first seed."""

    setting: Setting
    gains: dict[str, float]
    best: str

    def share(self, way: str) -> float | None:
        """Return a gain over the best of the grid; None where that is no gain, or none ran."""
        if way not in self.gains or self.gains[self.best] <= 0.0:
            return None
        return self.gains[way] / self.gains[self.best]

    @property
    def best_new(self) -> float | None:
        """The largest share of defaults, plan and auto."""
        shares = [self.share(way) for way in (DEFAULTS, PLAN, AUTO)]
        return max((share for share in shares if share is not None), default=None)


def contests(lines: Sequence[Line], num_steps: int) -> list[Contest]:
    """Return the cells whose grid is complete; a run that diverged gains nothing."""
    cells: dict[Setting, dict[str, float]] = {}
    for line in lines:
        if 0 in line.starts:
            cells.setdefault(line.setting, {})[line.way] = line.gains.get(0, float("-inf"))
    found = []
    for setting, gains in cells.items():
        grid = [way for way in gains if way in STEPS]
        if len(grid) == num_steps:
            found.append(Contest(setting, gains, max(grid, key=lambda way: gains[way])))
    return found


def counts(lines: Sequence[Line], found: Sequence[Contest]) -> list[str]:
    """Return a sentence for each question of the study."""
    ends = {(line.setting, line.way): line.result.loss for line in lines}
    sentences = []
    for way in (DEFAULTS, PLAN):
        runs = [line for line in lines if line.way == way]
        total = sum(len(line.starts) for line in runs)
        below = sum(gain > 0.0 for line in runs for gain in line.gains.values())
        sentences.append(f"{way.capitalize()} end below their start in {below} of {total} runs.")
    pairs = [
        (mean, planned)
        for (setting, way), mean in ends.items()
        if way == DEFAULTS and mean and (planned := ends.get((setting, PLAN)))
    ]
    better = sum(planned.mean <= mean.mean for mean, planned in pairs)
    sentences.append(
        f"The plan's mean loss is at or below that of defaults in {better} of {len(pairs)} cells."
    )
    if found:
        plans = [contest.share(PLAN) for contest in found]
        near = sum(share is not None and share >= 0.85 for share in plans)
        large = sum((contest.best_new or 0.0) >= 1.3 for contest in found)
        sentences += [
            f"The plan has at least 0.85 of the gain of the grid's best in {near} of "
            f"{len(found)} cells.",
            f"The best of defaults, plan and auto has at least 1.3 times the gain of the grid's "
            f"best in {large} of {len(found)} cells.",
        ]
    return sentences


def table(lines: Sequence[Line]) -> Table:
    """Return start, end and their paired difference for defaults and plan."""
    heads = ("text", "cohort", "rounds", "ε", "way", "start", "end", "end − start", "below start")
    rows = []
    for line in lines:
        moved = line.moved
        if line.way not in (DEFAULTS, PLAN) or moved is None:
            continue
        half = f" ± {moved.loss.high - moved.loss.mean:.4f}" if len(moved.seeds) > 1 else ""
        start = sum(line.starts[seed] for seed in moved.seeds) / len(moved.seeds)
        below = sum(gain > 0.0 for gain in line.gains.values())
        rows.append(
            [
                *line.setting.labels.values(),
                line.way,
                f"{start:.4f}",
                f"{start + moved.loss.mean:.4f}",
                f"{moved.loss.mean:+.4f}{half}".replace("-", "−"),
                f"{below} of {len(line.starts)}",
            ]
        )
    return Table(heads, rows, left=(0, 4))


def grid_of(found: Sequence[Contest]) -> Table:
    """Return the best of each grid, and the gains of defaults, plan and auto over its gain."""
    heads = ("text", "cohort", "rounds", "ε", "best of the grid", "its gain", DEFAULTS, PLAN, AUTO)
    rows = []
    for one in found:
        shares = [one.share(way) for way in (DEFAULTS, PLAN, AUTO)]
        texts = [NOTHING if share is None else f"{share:.2f}" for share in shares]
        gain = f"{one.gains[one.best]:.4f}"
        rows.append([*one.setting.labels.values(), one.best, gain, *texts])
    return Table(heads, rows, left=(0, 4))


def picture(lines: Sequence[Line], found: Sequence[Contest]) -> Figure:
    """Draw the mean gains of every cell, a panel for each text."""
    names = list(dict.fromkeys(line.setting.corpus.name for line in lines))
    note = "; or ".join(dict.fromkeys(line.result.terms for line in lines))
    label = "held-out loss, start minus end, nats"
    size = (3.0 + 2.6 * len(names), 4.0)
    figure, axes = panels(size, TITLE, note, [names], x="cohort × rounds, ε", y=label)
    best = {one.setting: one.gains[one.best] for one in found}
    for panel, name in zip(axes, names, strict=True):
        cells = list(dict.fromkeys(one.setting for one in lines if one.setting.corpus.name == name))
        for index, way in enumerate((DEFAULTS, PLAN)):
            gains = {
                cells.index(line.setting): -line.moved.loss.mean
                for line in lines
                if line.way == way and line.setting in cells and line.moved
            }
            panel.plot(list(gains), list(gains.values()), "o", color=colour(index), label=way)
        grid = {place: best[cell] for place, cell in enumerate(cells) if cell in best}
        panel.plot(list(grid), list(grid.values()), "_", ms=12, color=INK, label="best of the grid")
        panel.axhline(0.0, color=INK, lw=0.8)
        ticks = [f"{one.cohort:g} × {one.rounds}, {one.epsilon:g}" for one in cells]
        panel.set_xticks(range(len(cells)), ticks, rotation=45, ha="right")
    legend(figure, axes[0])
    return figure


@dataclass(frozen=True)
class ServerStep:
    """The study, as registered under `fedsim.studies`; called, it runs."""

    takes: ClassVar[tuple[str, ...]] = ("data", "epsilons", "cohorts", "rounds", "seeds")

    def __call__(
        self,
        out: Path,
        *,
        quick: bool,
        data: Sequence[Path] = (),
        epsilons: tuple[float, ...] = (),
        cohorts: tuple[float, ...] = (),
        rounds: int | None = None,
        seeds: int | None = None,
    ) -> None:
        """Run what is not finished, and write the page after every stage.

        Raises:
            ConfigError: a wrong option, or `out` is not a folder for a study.
            RunsFailedError: a run failed; what the others gave is written.
        """
        corpora = _corpora(data)
        whole = Scale(corpora)
        if quick:
            whole = Scale(corpora, (8.0,), (8.0,), (2,), 1, QUICK_STEPS, quick=True)
        scale = Scale(
            corpora,
            epsilons or whole.epsilons,
            cohorts or whole.cohorts,
            whole.rounds if rounds is None else (rounds,),
            seeds or whole.seeds,
            whole.steps,
            quick,
        )
        check_folder(out)
        typed = _typed(data, epsilons, cohorts, rounds, seeds)
        with sole_writer(out):
            study = Study(NAME, TITLE, __doc__, lambda _: _compute(scale, out, study), typed)
            result = study.compute(quick)
            study.write(result, out, quick=quick)
            study.show(result, out)
        if failures := sorted(path.name for path in (out / RUNS).glob("*.error.txt")):
            raise RunsFailedError("\n".join(f"{name}: a run failed" for name in failures))


run = ServerStep()


def _compute(scale: Scale, out: Path, study: Study) -> Result:
    runs, stages = Runs(out / RUNS, scale.quick), scale.stages()
    runner = one_after_another if scale.quick else side_by_side()
    total, ran, seconds = sum(stage.cost for stage in stages), 0.0, 0.0
    for number, stage in enumerate(stages, start=1):
        log.info("%s: stage %d of %d", NAME, number, len(stages))
        began = time.monotonic()
        jobs = list(runs.jobs(stage))
        check_folders(jobs, runs.folder)
        fresh = not all(RunFolder(job.out).report.exists() for job in jobs)
        carry_out(jobs, runs.folder, runner)
        total -= stage.cost
        if fresh:
            ran, seconds = ran + stage.cost, seconds + time.monotonic() - began
            study.write(_result(scale, runs, stages, out), out, quick=scale.quick)
            log.info("%s: about %s left", NAME, duration_text(seconds / ran * total))
    return _result(scale, runs, stages, out)


def _result(scale: Scale, runs: Runs, stages: Sequence[Stage], out: Path) -> Result:
    lines = runs.lines(stages)
    if not lines:
        raise RunsFailedError(f"{out / RUNS}: no run ended; the files *.error.txt say why")
    seeds = sorted({seed for line in lines for seed in line.starts})
    measurement = GridResult(lines=tuple(line.result for line in lines), seeds=tuple(seeds))
    write_atomically(out / MEASUREMENT, f"{measurement.model_dump_json(indent=2)}\n")
    found = contests(lines, len(scale.steps))
    done = sum(len(line.starts) for line in lines)
    planned = sum(len(stage.settings) * len(stage.ways) for stage in stages)
    time_taken = duration_text(sum(line.result.seconds for line in lines))
    return Result(
        settings=[
            f"{done} of {planned} runs are done, in {time_taken} of runs; {len(found)} grids are "
            "complete.",
            f"Texts: {', '.join(corpus.name for corpus in scale.corpora)}. Cohorts "
            f"{listed(scale.cohorts)}, rounds {listed(scale.rounds)}, ε {listed(scale.epsilons)}, "
            f"{scale.seeds} seeds; sequence length 32, groups of 2, texts of a user joined; one "
            f"example of about {SCORED:,} users is scored.",
            *dict.fromkeys(line.result.terms for line in lines),
            *(INTERVAL_NOTE, UTILITY_NOTE, TOGETHER),
        ],
        notes=counts(lines, found),
        table=table(lines),
        records=records(measurement),
        figure=picture(lines, found),
        further={"Gains over the best of the grid": grid_of(found)} if found else {},
    )


def _corpora(data: Sequence[Path]) -> tuple[Corpus, ...]:
    corpora = {BUILT_IN: Corpus(BUILT_IN)}
    for path in data:
        if not path.exists():
            raise ConfigError(f"--data {path}: there is no such file")
        name = path.name.partition(".")[0]
        if name in corpora:
            raise ConfigError(f"--data {path}: a second text called {name!r}; rename the file")
        corpora[name] = Corpus(name, path.resolve())
    return tuple(corpora.values())


def _typed(
    data: Sequence[Path],
    epsilons: Sequence[float],
    cohorts: Sequence[float],
    rounds: int | None,
    seeds: int | None,
) -> str:
    """Return the options as the page quotes them: of files their names alone."""
    words = [f" --data {path.name}" for path in data]
    for option, values in (("epsilon", epsilons), ("cohort", cohorts)):
        words += [f" --{option} {' '.join(f'{value:g}' for value in values)}"] if values else []
    for option, value in (("rounds", rounds), ("seeds", seeds)):
        words += [f" --{option} {value}"] if value else []
    return "".join(words)
