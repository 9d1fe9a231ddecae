"""De et al. 2022, on text: does a private run end below its start, and how far?

*Defaults* is a config with ε, δ, cohort, rounds, group and sequence length, but without keys for
clip and server; its learning rate is automatic. *Plan* is the config that `fedsim plan` writes for
it, with the same expected gradients. *Auto* has the plan's sizes and clip, and the automatic rate.
In some cells a *grid* of twelve constant rates runs at the plan's sizes: Adam with three rates and
two clip norms, SGD with six rates. SGD has normalised updates of norm 1, as a clip norm would only
scale its rate. The best of a grid is chosen on held-out text; no ε here covers this choice.

`tiny-gpt` trains on the built-in text and on every file of `--data` (JSON lines, columns `user` and
`text`). A gain is the held-out loss at the start minus that at the end. The paper tunes rate and
clip by hand; here only the grid is tuned. The three constants of the automatic rate were chosen on
the same texts (`docs/planning.md`).

The page of this repository uses three files. First, the Ubuntu IRC logs of irc-disentanglement
(Kummerfeld et al. 2019, CC-BY-4.0), by nick. Second, the changelogs of 416 source packages of
Debian 12, by maintainer: one row per entry of `debian/changelog` from `apt-get source --diff-only`;
the sorted list of packages has the SHA-256 f17e720a…. Third, the chats of PyPI's chitchat-dataset
0.9.0 (MIT; Myers et al. 2020), by sender, one row per turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from matplotlib.figure import Figure

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
from fedsim.experiments.studies.common.trained import MEASUREMENT, RUNS, side_by_side
from fedsim.experiments.studies.de_2022.server_step_runs import (
    AUTO,
    BUILT_IN,
    DEFAULTS,
    PLAN,
    QUICK_STEPS,
    STEPS,
    Corpus,
    Line,
    Runs,
    Scale,
    Setting,
    Stage,
)
from fedsim.report.grid_result import INTERVAL_NOTE, GridResult, records
from fedsim.report.style import INK, colour
from fedsim.report.tables import UTILITY_NOTE
from fedsim.report.wording import NOTHING, TOGETHER, duration_text
from fedsim.runner.folder import RunFolder
from fedsim.sweep.jobs import carry_out, check_folders, one_after_another
from fedsim.utils.files import write_atomically
from fedsim.utils.locks import sole_writer

NAME, TITLE = "server-step", "The server's step: defaults and plan against tuned constant rates"
log = logging.getLogger("fedsim")


@dataclass(frozen=True)
class Contest:
    """Gains of defaults, plan, auto and the best of the grid, in one cell of the first seed."""

    setting: Setting
    gains: dict[str, float]
    best: str

    def share(self, way: str) -> float | None:
        """Return a gain over the grid's best gain; None if that is not positive or has no run."""
        if way not in self.gains or self.gains[self.best] <= 0.0:
            return None
        return self.gains[way] / self.gains[self.best]

    @property
    def best_new(self) -> float | None:
        """The largest share of defaults, plan and auto."""
        shares = [self.share(way) for way in (DEFAULTS, PLAN, AUTO)]
        return max((share for share in shares if share is not None), default=None)


def contests(lines: Sequence[Line], num_steps: int) -> list[Contest]:
    """Return the cells with a complete grid; a diverged run has gain 0."""
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
    texts = {DEFAULTS: "With defaults", PLAN: "With the plan"}
    for way, way_text in texts.items():
        runs = [line for line in lines if line.way == way]
        total = sum(len(line.starts) for line in runs)
        below = sum(gain > 0.0 for line in runs for gain in line.gains.values())
        sentences.append(
            f"{way_text} the final loss is below the first in {below} of {total} runs."
        )
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
            f"The plan gains at least 0.85 times as much as the best rate of the grid in {near} of "
            f"{len(found)} cells.",
            f"The best of defaults, plan and auto gains at least 1.3 times as much as the best "
            f"rate of the grid in {large} of {len(found)} cells.",
        ]
    return sentences


def table(lines: Sequence[Line]) -> Table:
    """Return a table of start, end and their paired difference for defaults and plan."""
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
    """Return a table of each grid's best, and the gains of defaults, plan and auto over it."""
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
    """The study, as registered under `fedsim.studies`; a call runs it."""

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
        """Run all unfinished runs, and write the page after every stage.

        Raises:
            ConfigError: an option is invalid, or `out` is not a folder for a study.
            RunsFailedError: a run failed; the results of the others are written.
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
        raise RunsFailedError(f"{out / RUNS}: no run was successful; see the files *.error.txt")
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
            raise ConfigError(f"--data {path}: a second text named {name!r}; rename the file")
        corpora[name] = Corpus(name, path.resolve())
    return tuple(corpora.values())


def _typed(
    data: Sequence[Path],
    epsilons: Sequence[float],
    cohorts: Sequence[float],
    rounds: int | None,
    seeds: int | None,
) -> str:
    """Return the options as shown on the page; files without their path."""
    words = [f" --data {path.name}" for path in data]
    for option, values in (("epsilon", epsilons), ("cohort", cohorts)):
        words += [f" --{option} {' '.join(f'{value:g}' for value in values)}"] if values else []
    for option, value in (("rounds", rounds), ("seeds", seeds)):
        words += [f" --{option} {value}"] if value else []
    return "".join(words)
