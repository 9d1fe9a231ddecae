"""Charles et al. 2024, Conjecture 1 on a grid: σ_ELS <= K σ_ULS at equal rates.

Conjecture 1 (§3): when both group sizes are K and both rates are equal, the noise multiplier of
ELS is at most K times that of ULS for the same (ε, δ) and rounds T. Then ELS adds no more noise
than ULS if a user's gradients are alike. The study computes the ratio σ_ELS/(K σ_ULS) of calibrated
noise multipliers, which is at most 1 under the conjecture. The table has the extremes over all ε, δ
and T; `table.csv` has every case.

Lemma 1 states the same for the one-sided Rényi divergence of a round at integer orders; it is
proved in Appendix D. Here both sides are integrated numerically, without the proof's expansion.
`lemma_1.csv` has every comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.experiments.studies.charles_2024 import lemma_1
from fedsim.experiments.studies.common.output import (
    Result,
    Table,
    legend,
    listed,
    panels,
    steps,
    study,
)
from fedsim.report.style import MUTED, colour
from fedsim.sampling import PoissonSampling

TOLERANCE = 2.2e-3
"""Tolerance of the ratio: a calibrated σ may be too large by 2e-3 (slack in ε) plus 1e-4 (five
digits)."""

LEAST_NOISE = 0.05  # lower limit of the calibration; ratios at it are meaningless


class Grid(NamedTuple):
    """Values of the varied settings; every combination is a case."""

    epsilons: Sequence[float]
    deltas: Sequence[float]
    rounds: Sequence[int]
    probabilities: Sequence[float]
    group_sizes: Sequence[int]
    lemma_noise_multipliers: Sequence[float]
    lemma_probabilities: Sequence[float]


FULL = Grid(
    (0.5, 2.0, 8.0, 32.0),
    (1e-5, 1e-8),
    (1, 100, 2_000),
    (0.01, 0.1, 0.5, 1.0),
    (2, 4, 8, 16, 32, 64),
    (0.5, 1.0, 2.0, 4.0),
    (0.001, 0.01, 0.1, 0.5, 0.9, 1.0),
)
QUICK = Grid((2.0,), (1e-5,), (100,), (0.1, 1.0), (2, 16), (1.0,), (0.1, 1.0))

TERMS = (
    "unit: user; neighbouring relation: add-or-remove-one user; sampler: Poisson sampling of "
    "examples (ELS, mixture accountant) or of users (ULS, pld accountant) at the same rate p = q"
)


class Case(NamedTuple):
    """Noise multipliers at one combination, with ratio = σ_ELS / (K σ_ULS)."""

    epsilon: float
    delta: float
    rounds: int
    probability: float
    group_size: int
    els_noise_multiplier: float
    uls_noise_multiplier: float
    ratio: float
    violated: bool


@study("conjecture-1", "Conjecture 1 on a grid: σ_ELS over K σ_ULS", __doc__)
def run(quick: bool) -> Result:
    """Test the conjecture and the lemma."""
    grid = QUICK if quick else FULL
    combinations = [*product(*grid[:5])]
    cases = [calibrate(*combination) for combination in steps(combinations, "conjecture 1")]
    counted = [case for case in cases if case.uls_noise_multiplier > LEAST_NOISE]
    lemma = [
        comparison
        for setting in product(
            grid.group_sizes, grid.lemma_noise_multipliers, grid.lemma_probabilities
        )
        for comparison in lemma_1.compare(*setting)
    ]
    return Result(
        settings=_settings(grid, dropped=len(cases) - len(counted)),
        notes=(
            f"Conjecture 1: {sum(case.violated for case in counted)} violations in "
            f"{len(counted)} cases beyond a tolerance of {TOLERANCE:g}.",
            f"Lemma 1: {sum(row.violated for row in lemma)} violations in {len(lemma):,} "
            f"comparisons (orders {lemma_1.ORDERS[0]} to {lemma_1.ORDERS[-1]}) beyond rounding.",
        ),
        table=_extremes(counted, lemma),
        records=[case._asdict() for case in counted],
        figure=draw(counted, grid),
        more={"lemma_1.csv": [row._asdict() for row in lemma]},
    )


def calibrate(
    epsilon: float, delta: float, rounds: int, probability: float, group_size: int
) -> Case:
    """Return both noise multipliers for the same promise, and their ratio."""
    els, uls = (
        calibrate_noise_multiplier(
            sampling=PoissonSampling(probability),
            units_per_user=units,
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
        )
        for units in (group_size, 1)
    )
    ratio = els / (group_size * uls)
    violated = ratio > 1.0 + TOLERANCE
    return Case(epsilon, delta, rounds, probability, group_size, els, uls, ratio, violated)


def draw(cases: Sequence[Case], grid: Grid) -> Figure:
    """Draw the ratio against K: a panel for each p < 1 and number of rounds, a line for each ε."""
    probabilities = [probability for probability in grid.probabilities if probability < 1.0]
    delta = grid.deltas[0]
    figure, panes = panels(
        (3.0 + 2.1 * len(probabilities), 1.8 + 1.5 * len(grid.rounds)),
        "Conjecture 1: σ_ELS over K σ_ULS",
        f"δ = {delta:g}; {TERMS}",
        [
            [f"p = {p:g}, {rounds:,} round{'s' if rounds > 1 else ''}" for p in probabilities]
            for rounds in grid.rounds
        ],
        x="K: examples a user",
        y=r"$\sigma_{ELS} / (K \sigma_{ULS})$",
        share=(True, True),
    )
    for axes, (rounds, p) in zip(panes, product(grid.rounds, probabilities), strict=True):
        chosen = [c for c in cases if (c.delta, c.rounds, c.probability) == (delta, rounds, p)]
        _curves(axes, chosen, grid)
    legend(figure, panes[0])
    return figure


def _curves(axes: Axes, cases: Sequence[Case], grid: Grid) -> None:
    axes.axhline(1.0, color=MUTED, linestyle="--", linewidth=1.0, label="the conjecture's bound")
    for index, epsilon in enumerate(grid.epsilons):
        row = [case for case in cases if case.epsilon == epsilon]
        sizes, ratios = [case.group_size for case in row], [case.ratio for case in row]
        axes.plot(sizes, ratios, "o-", color=colour(index), ms=3, label=f"ε = {epsilon:g}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(grid.group_sizes, [str(size) for size in grid.group_sizes])
    axes.set_ylim(0.0, 1.1)


def _settings(grid: Grid, dropped: int) -> tuple[str, ...]:
    names = ("ε", "δ", "T", "p", "K")
    varied = "; ".join(
        f"{name} in {listed(values)}" for name, values in zip(names, grid[:5], strict=True)
    )
    return (
        f"Terms: {TERMS}; each σ is the smallest for its (ε, δ).",
        f"Conjecture 1: {varied}. {dropped} cases are left out because σ_ULS is at "
        f"{LEAST_NOISE:g}, the smallest noise multiplier considered.",
        f"Tolerance: a calibrated σ is rounded up to five digits and its ε is at most 2e-3 below "
        f"the target. ε falls at least like 1/σ here, so a ratio is known to {TOLERANCE:g}.",
        f"Lemma 1: K as above; σ in {listed(grid.lemma_noise_multipliers)}; p in "
        f"{listed(grid.lemma_probabilities)}. A violation: (α - 1) R_α of ELS exceeds that of "
        f"ULS by more than {lemma_1.TOLERANCE:g} (1 + its value).",
    )


def _extremes(cases: Sequence[Case], lemma: Sequence[lemma_1.Comparison]) -> Table:
    """Return a row for each p and K: extremes of the ratio, and violations of both."""
    rows = []
    for p, size in sorted({(case.probability, case.group_size) for case in cases}):
        same = [case for case in cases if (case.probability, case.group_size) == (p, size)]
        ratios = [case.ratio for case in same]
        renyi = [row for row in lemma if (row.probability, row.group_size) == (p, size)]
        rows.append(
            [
                f"{p:g}",
                str(size),
                str(len(same)),
                f"{min(ratios):.4f}",
                f"{max(ratios):.4f}",
                str(sum(case.violated for case in same)),
                str(sum(row.violated for row in renyi)),
            ]
        )
    heads = ("p", "K", "cases", "least ratio", "largest ratio", "violations", "Lemma 1 violations")
    return Table(heads, rows)
