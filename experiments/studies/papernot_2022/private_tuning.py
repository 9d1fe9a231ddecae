"""Papernot and Steinke 2022: a learning rate chosen on private text, with its privacy cost.

The study compares four ways at one ε, seed by seed, on real text. *Defaults* uses the default rate.
*Tuned* is `fedsim tune`: its ε covers the search, the winner and the score, so each trial has more
noise. *Uncharged* trains every candidate with the whole ε and takes the one with the least held-out
loss. No ε covers this choice; papers often report it, and it bounds the gain of choosing.
*Hindsight* is the best candidate on average over seeds.

Losses are means over users of held-out text. They are computed on private text, and no guarantee
covers them, except for the private score of a search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import fedsim.experiments
from fedsim.accounting.rounding import text_up
from fedsim.experiments.studies.common.output import (
    Result,
    Table,
    listed,
    panels,
    steps,
    study_of_runs,
)
from fedsim.experiments.studies.common.runs import trained_once
from fedsim.report.intervals import interval
from fedsim.report.schema import RunReport, load_report
from fedsim.report.style import colour
from fedsim.report.wording import terms_text
from fedsim.runner.folder import RunFolder
from fedsim.sweep.cells import Cell, Variation, expand
from fedsim.sweep.search import WINNER, run_search

TITLE = "A learning rate chosen on private text: what paying for the search costs, and gains"
DEFAULT = "0.01"
CONFIG = Path(fedsim.experiments.__file__).parent / "configs" / "study.toml"


@dataclass(frozen=True)
class Scale:
    """Sizes of the study.

    Attributes:
        rates: candidate learning rates, including the default.
        seeds: number of seeds.
        trials: mean number of trials of a search.
        rounds: rounds of a run.
        cohort_size: expected number of users per round.
    """

    rates: tuple[str, ...]
    seeds: int
    trials: float
    rounds: int
    cohort_size: int


FULL = Scale(("0.001", "0.003", DEFAULT, "0.03", "0.1"), 6, 6.0, 30, 128)
QUICK = Scale(("0.001", DEFAULT), 2, 2.0, 2, 32)


@dataclass(frozen=True)
class Seed:
    """Results of one seed's runs.

    Attributes:
        losses: loss of each candidate, trained with the whole ε.
        tuned: report of the search's winner.
        chosen: learning rate of the winner.
    """

    losses: Mapping[str, float]
    tuned: RunReport
    chosen: str


@study_of_runs("private-tuning", TITLE, __doc__)
def run(folder: Path, quick: bool) -> Result:
    """Train the runs in `folder`."""
    scale = QUICK if quick else FULL
    seeds = [one_seed(scale, seed, folder) for seed in steps(range(scale.seeds), "private tuning")]
    lines = _lines(scale, seeds)
    defaults = np.array(lines["defaults"])
    records = [
        {
            "line": name,
            **{f"seed_{seed}": loss for seed, loss in enumerate(losses)},
            "mean": float(np.mean(losses)),
            "over_defaults": float(np.mean(np.array(losses) - defaults)),
        }
        for name, losses in lines.items()
    ]
    return Result(
        settings=_settings(scale, seeds),
        notes=_notes(lines, seeds),
        table=Table(
            ("line", "held-out loss", "minus defaults", "95 %", "better seeds"), _rows(lines)
        ),
        records=records,
        figure=_figure(lines, seeds[0]),
    )


def one_seed(scale: Scale, seed: int, folder: Path) -> Seed:
    """Train every candidate with the whole ε, and run a search over them."""
    cells = candidates(scale, seed)
    losses = {
        rate: _loss(_trained(cell, folder)) for rate, cell in zip(scale.rates, cells, strict=True)
    }
    out = folder / f"search-{seed}"
    if not (out / WINNER).exists():
        run_search(cells, out, trials=scale.trials, resume=True)
    rate = RunFolder(out / WINNER).read_config().server.learning_rate
    return Seed(losses, load_report(out / WINNER), f"{rate:g}")


def candidates(scale: Scale, seed: int) -> list[Cell]:
    """Return a config for each rate."""
    overrides = (
        f"seed={seed}",
        "server.optimizer=adam",
        f"strategy.rounds={scale.rounds}",
        f"strategy.cohort_size={scale.cohort_size}",
        f"training.evaluate_every={scale.rounds}",
        f"training.checkpoint_every={scale.rounds}",
    )
    scored = "training.private_evaluation={noise_multiplier=4.0,loss_bound=7.0}"
    return expand(CONFIG, [Variation("server.learning_rate", scale.rates)], [*overrides, scored])


def _trained(cell: Cell, folder: Path) -> RunReport:
    """Train a candidate alone, with the whole ε for its rounds, as no score is released."""
    training = cell.config.training.model_copy(update={"private_evaluation": None})
    config = cell.config.model_copy(update={"training": training})
    out = folder / f"rate-{config.server.learning_rate:g}-{config.seed}"
    return trained_once(config, out)


def _loss(report: RunReport) -> float:
    loss = report.utility.final.user_loss
    return float("inf") if loss is None else loss


def _lines(scale: Scale, seeds: Sequence[Seed]) -> dict[str, list[float]]:
    by_rate = {rate: [seed.losses[rate] for seed in seeds] for rate in scale.rates}
    hindsight = min(by_rate, key=lambda rate: float(np.mean(by_rate[rate])))
    return {
        "defaults": by_rate[DEFAULT],
        "tuned, paid for": [_loss(seed.tuned) for seed in seeds],
        "tuned, uncharged": [min(seed.losses.values()) for seed in seeds],
        f"hindsight ({hindsight})": by_rate[hindsight],
        **{f"rate {rate}": losses for rate, losses in by_rate.items()},
    }


def _rows(lines: Mapping[str, Sequence[float]]) -> list[list[str]]:
    defaults = np.array(lines["defaults"])
    rows = []
    for name, losses in lines.items():
        more = np.array(losses) - defaults
        shown = interval(more.tolist()) if len(more) > 1 and more.any() else None
        spread = "–" if shown is None else f"{shown.low:+.4f} to {shown.high:+.4f}"
        rows.append(
            [
                name,
                f"{np.mean(losses):.4f}",
                f"{more.mean():+.4f}",
                spread,
                f"{int((more < 0).sum())} of {len(more)}",
            ]
        )
    return rows


def _notes(lines: Mapping[str, Sequence[float]], seeds: Sequence[Seed]) -> list[str]:
    tuned, uncharged = np.array(lines["tuned, paid for"]), np.array(lines["tuned, uncharged"])
    best = [min(seed.losses, key=lambda rate: seed.losses[rate]) for seed in seeds]
    scores = [seed.tuned.private_scores for seed in seeds]
    spread = [score.loss_stddev for score in scores if score is not None]
    return [
        f"Chosen by the searches: {', '.join(seed.chosen for seed in seeds)}; without a charge: "
        f"{', '.join(best)}.",
        f"The loss after a search that ε pays for, minus that after a choice without a charge, is "
        f"{float(np.mean(tuned - uncharged)):+.4f} nats on average over the seeds.",
        f"The noise of a private score has a standard deviation of {np.mean(spread):.3f} nats.",
    ]


def _settings(scale: Scale, seeds: Sequence[Seed]) -> list[str]:
    tuned = seeds[0].tuned.privacy
    cell = candidates(scale, 0)[0].config
    return [
        f"{scale.seeds} seeds; {scale.rounds} rounds of {scale.cohort_size} expected users; Adam; "
        f"rates {listed(map(float, scale.rates))}, of which {DEFAULT} is the default; a search has "
        f"{scale.trials:g} trials on average (geometric), chosen by a private score of noise "
        "multiplier 4 and loss bound 7 nats.",
        f"Tuned: ε = {text_up(tuned.epsilon or 0.0, 4)} of the search; {terms_text(tuned)}; noise "
        f"multiplier {tuned.noise_multiplier:.5g}. Defaults and uncharged: ε = "
        f"{text_up(cell.privacy.epsilon or 0.0)} of one run, for the same unit, relation "
        "and accountant; no ε covers the choice without a charge.",
        "Draws were seeded: every ε here is simulated.",
    ]


def _figure(lines: Mapping[str, Sequence[float]], first: Seed) -> Figure:
    note = f"Tuned: {terms_text(first.tuned.privacy)}"
    label = "held-out loss minus that of defaults, nats"
    figure, (axes,) = panels((8.0, 3.6), TITLE, note, [[""]], x="", y=label)
    defaults = np.array(lines["defaults"])
    shown = [name for name in lines if not name.startswith("rate ")]
    for place, name in enumerate(shown):
        more = np.array(lines[name]) - defaults
        axes.plot([place] * len(more), more, "o", color=colour(place), alpha=0.6)
        axes.plot([place - 0.2, place + 0.2], [more.mean()] * 2, color=colour(place), linewidth=2)
    axes.set_xticks(range(len(shown)), shown)
    return figure
