"""Chua et al. 2024, App. C.4, Table 12: time of each part of a private round.

The paper times a step with and without privacy. This study splits the time of a round. The floor is
forward and backward over its texts in large padded batches, as in training without privacy. Further
parts are the extra time of the engine's clipped sum, the extra time of Flower's messages, estimate
and noise, the server's step, and the ledger's charge with the budget's check.

The check is done once per run and divided by the rounds, so it costs longer runs less per round.
The floor includes reading the texts. `least` and `most` are over rounds.

The paper reports factors of 1.06 to 1.09 for User-wise DP-SGD and 1.04 to 1.06 for Group Privacy:
GPT-2 small to large, LoRA of rank 32, 1,024 sequences per step, ten per unit, on an A100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

from fedsim.config import Config
from fedsim.experiments.studies.chua_2024.round_stages import (
    BATCH_SIZES,
    Parts,
    Prepared,
    Stages,
    measure,
    parts,
    prepare,
)
from fedsim.experiments.studies.common import trained
from fedsim.experiments.studies.common.output import (
    Result,
    Table,
    legend,
    panels,
    steps,
    study,
)
from fedsim.experiments.studies.common.trained import base
from fedsim.materials import Materials, load_materials
from fedsim.planner.budget import at_budget
from fedsim.report.style import INK, colour
from fedsim.runner.launch import open_grid
from fedsim.runner.summary import expected_gradients
from fedsim.strategy import build_plan
from fedsim.trackers.tracking import epsilon_terms
from fedsim.utils.machine import machine, versions

COHORT, QUICK_COHORT = 64, 8
ROUNDS, QUICK_ROUNDS = 5, 2
REPETITIONS, QUICK_REPETITIONS = 9, 2
NAMES = {
    "forward_backward": "forward and backward",
    "clipping": "clipping",
    "communication": "messages and framework",
    "noise": "estimate and noise",
    "server_step": "server step",
    "accounting": "ledger and budget",
}


@dataclass(frozen=True, eq=False)
class Measured:
    """Measured rounds of one strategy.

    Attributes:
        name: name of the strategy.
        terms: terms of the ε that the noise is calibrated to.
        stages: stages of each round.
        num_units: number of units of each round.
        num_gradients: number of gradients of each round.
    """

    name: str
    terms: str
    stages: Sequence[Stages]
    num_units: Sequence[int]
    num_gradients: Sequence[int]

    @property
    def mean(self) -> Stages:
        """The stages of the mean round."""
        return Stages(*np.mean(self.stages, axis=0).tolist())

    @property
    def parts(self) -> Parts:
        """The parts of the mean round."""
        return parts(self.mean)


@study("overhead", "Where the seconds of a private round go", __doc__)
def run(quick: bool) -> Result:
    """Time both strategies on this machine."""
    uls, els, materials = configs(quick)
    measured = [time_rounds(config, materials, quick) for config in (uls, els)]
    where, which = machine(), versions()
    on = (
        f"{where['system']}, {where['processor']}, {where['cpus']} CPUs; one worker in this "
        f"process, {torch.get_num_threads()} thread(s) of torch, OMP_NUM_THREADS = "
        f"{where['threads']}; {where['date']}"
    )
    terms = [f"{strategy.name.upper()}: noise for {strategy.terms}" for strategy in measured]
    work = "; ".join(
        f"{strategy.name.upper()} {np.mean(strategy.num_units):g} units with "
        f"{np.mean(strategy.num_gradients):g} gradients"
        for strategy in measured
    )
    records = rows(measured)
    model = uls.model
    return Result(
        settings=(
            f"Measured on {on}.",
            f"Versions: {', '.join(f'{name} {number}' for name, number in which.items())}.",
            f"{model.name_or_path}, trained: {model.trainable}; sequences of at most "
            f"{uls.data.sequence_length} tokens; mean round: {work}.",
            f"Times are medians over interleaved repetitions, averaged over "
            f"{len(measured[0].stages)} rounds. The floor is the fastest non-private gradient, of "
            f"batches of {', '.join(map(str, BATCH_SIZES))} sequences.",
            *(f"{text}." for text in terms),
            f"A run has {uls.strategy.rounds} rounds.",
        ),
        notes=[count(strategy) for strategy in measured],
        table=Table.of(
            records,
            {
                "strategy": ("strategy", str.upper),
                "part": ("part", lambda part: NAMES.get(part, "total")),
                "s a round": ("seconds", ".4g"),
                "least": ("least", ".4g"),
                "most": ("most", ".4g"),
                "share": ("share", ".1%"),
                "over the floor": ("ratio_to_floor", ".3f"),
            },
        ),
        records=records,
        figure=draw(
            measured,
            "; ".join([on, *terms]) + ". Right of a bar: its time / that of gradients and step.",
        ),
    )


def count(strategy: Measured) -> str:
    """Return a sentence on a strategy's ratio to non-private training, and its round's time."""
    return (
        f"{strategy.name.upper()}: a private round takes {strategy.parts.ratio:.2f} times the "
        f"{strategy.parts.non_private:.4g} s of gradients and step, by the sum of its parts. The "
        f"whole round, timed at once, takes {strategy.mean.whole:.4g} s."
    )


def configs(quick: bool) -> tuple[Config, Config, Materials]:
    """Return ULS, ELS with the same expected gradients per round, and the materials of both."""
    uls, els = (
        trained.quick_config(config) if quick else config
        for config in (
            base(f"strategy.cohort_size={QUICK_COHORT if quick else COHORT}"),
            base("strategy.name=els", "strategy.group_size=9", "strategy.batch_size=1"),
        )
    )
    materials = load_materials(uls.seed, uls.data, uls.model, "cpu")
    budget = expected_gradients(uls, materials, build_plan(uls, materials))
    return uls, at_budget(els, materials, budget), materials


def time_rounds(config: Config, materials: Materials, quick: bool) -> Measured:
    """Return the stages of some rounds, with this process as the only worker."""
    rounds, repetitions = (QUICK_ROUNDS, QUICK_REPETITIONS) if quick else (ROUNDS, REPETITIONS)
    with open_grid(config.executor) as grid:
        prepared: Prepared = prepare(config, materials, grid)
        rounds_measured = [
            measure(prepared, round, repetitions)
            for round in steps(range(rounds), f"rounds of {config.strategy.name}")
        ]
    epsilon = config.privacy.epsilon
    return Measured(
        config.strategy.name,
        f"ε = {epsilon:g}, {epsilon_terms(prepared.plan, config)}",
        [stages for stages, _ in rounds_measured],
        [total.num_units for _, total in rounds_measured],
        [total.num_gradients for _, total in rounds_measured],
    )


def rows(measured: Sequence[Measured]) -> list[dict[str, object]]:
    """Return a row for each strategy and part, and its total; least and most are over rounds."""
    records: list[dict[str, object]] = []
    for strategy in measured:
        split = strategy.parts
        by_round = [(*each, each.total) for each in map(parts, strategy.stages)]
        columns = [*zip(*by_round, strict=True)]
        for field, seconds, of_rounds in zip(
            (*split._fields, "total"), (*split, split.total), columns, strict=True
        ):
            records.append(
                {
                    "strategy": strategy.name,
                    "part": field,
                    "seconds": seconds,
                    "least": min(of_rounds),
                    "most": max(of_rounds),
                    "share": seconds / split.total,
                    "ratio_to_floor": seconds / split.forward_backward,
                    "units": float(np.mean(strategy.num_units)),
                    "gradients": float(np.mean(strategy.num_gradients)),
                }
            )
    return records


def draw(measured: Sequence[Measured], note: str) -> Figure:
    """Draw a stacked bar of seconds for each strategy, without negative parts."""
    title = "Where the seconds of a private round go"
    figure, (axes,) = panels((9.0, 3.4), title, note, [[""]], x="seconds a round", y="")
    names = [strategy.name.upper() for strategy in measured]
    left = np.zeros(len(measured))
    for index, (field, label) in enumerate(NAMES.items()):
        widths = np.array([max(0.0, getattr(strategy.parts, field)) for strategy in measured])
        axes.barh(names, widths, left=left, height=0.6, color=colour(index), label=label)
        left += widths
    for place, strategy in enumerate(measured):
        axes.text(
            left[place], place, f"  {strategy.parts.ratio:.2f}×", va="center", fontsize=9, color=INK
        )
    axes.margins(x=0.12)
    axes.invert_yaxis()
    legend(figure, axes)
    return figure
