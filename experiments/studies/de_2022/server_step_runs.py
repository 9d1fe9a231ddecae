"""The runs of the study of server steps: configs, order and results."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Final

from fedsim.config import Config, parse_config
from fedsim.experiments.studies.common.options import SCORED
from fedsim.experiments.studies.common.trained import quick_config
from fedsim.materials import materials_of
from fedsim.planner.compare_strategies import compare_strategies
from fedsim.report.grid_result import CellResult, with_reports
from fedsim.report.intervals import Difference, difference
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from fedsim.sweep.jobs import Job

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
"""The grid of constant rates, each with its clip."""
QUICK_STEPS = ("sgd 0.4",)
_FIXED = 2_000.0  # evaluations of a run, in gradients of equal time

log = logging.getLogger("fedsim")


@dataclass(frozen=True)
class Corpus:
    """A training text; `file` is None for the built-in text."""

    name: str
    file: Path | None = None

    @cached_property
    def scored(self) -> float:
        """Share of users with held-out text: all users, or about `SCORED` if there are more."""
        users = materials_of(self.config(0, 1.0, 1, 8.0), device="cpu").split.num_users
        return float(f"{min(1.0, SCORED / users):.2g}")

    def config(
        self, seed: int, cohort: float, rounds: int, epsilon: float, scored: float = 1.0
    ) -> Config:
        """Return a config without keys for clip and server."""
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
    """A cell of the study with its seeds; defaults, plan and grid share it."""

    corpus: Corpus
    cohort: float
    rounds: int
    epsilon: float

    @property
    def labels(self) -> dict[str, str]:
        """The settings, as shown in the table."""
        numbers = {"cohort": self.cohort, "rounds": self.rounds, "epsilon": self.epsilon}
        return {"data": self.corpus.name, **{key: f"{value:g}" for key, value in numbers.items()}}

    def name(self, way: str) -> str:
        """Return the name of a line, which is also in the names of its runs."""
        return ",".join([way, *(f"{key}={value}" for key, value in self.labels.items())])


@dataclass(frozen=True)
class Stage:
    """Runs that are executed together; a page is written after each stage.

    Attributes:
        seed: seed of the runs.
        settings: cells of the runs.
        ways: ways to run in every cell.
    """

    seed: int
    settings: Sequence[Setting]
    ways: Sequence[str]

    @property
    def cost(self) -> float:
        """Cost of the stage in gradients, including its evaluations."""
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
        """Return all runs, the cheapest of all seeds first.

        The grid uses the first seed and the smallest cohort, with the fewest rounds for every ε and
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
        return sorted(stages, key=lambda stage: (stage.cost, stage.seed))

    def _settings(self, cohort: float, rounds: int, epsilons: Sequence[float]) -> list[Setting]:
        return [
            Setting(corpus, cohort, rounds, epsilon)
            for corpus, epsilon in product(self.corpora, epsilons)
        ]


@dataclass(frozen=True)
class Line:
    """One way at one setting over its seeds, with each seed's initial loss."""

    setting: Setting
    way: str
    result: CellResult
    starts: dict[int, float]

    @property
    def moved(self) -> Difference | None:
        """End minus start, paired by seed; None if no run ended with a finite loss."""
        return difference("end", "start", self.result.counted_losses, self.starts)

    @property
    def gains(self) -> dict[int, float]:
        """Start minus end, by seed."""
        return {seed: self.starts[seed] - end for seed, end in self.result.counted_losses.items()}


@dataclass
class Runs:
    """The runs of the study in one folder.

    Attributes:
        folder: folder of all runs.
        quick: whether runs have two rounds and few users with held-out text.
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
        """Return the plan; a run that has already started has it in its folder."""
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
