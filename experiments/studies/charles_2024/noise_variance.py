"""Charles et al. 2024, §3, App. C, Figures 2 and 6: noise of ELS and ULS at equal ε and compute.

The study computes the noise variance of a coordinate of the gradient estimate (eqs 5 and 6). Both
samplers have the same ε and compute the same expected number B of gradients per round. ULS has a
fixed cohort of M users and uses G = B/M examples of each.

`alike`: all gradients of a user are equal, L_ULS = L_ELS. `diverse`: they are orthogonal,
L_ULS = L_ELS/√G. A ratio is var(ELS)/var(ULS); condition (7) says that it is at most 1.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.experiments.studies.common.output import (
    Result,
    Table,
    legend,
    number,
    panels,
    steps,
    study,
)
from fedsim.planner.noise import Noise, condition_7
from fedsim.report.style import colour
from fedsim.sampling import PoissonSampling

NUM_USERS, EXAMPLES_PER_USER, ELS_GROUP_SIZE = 1_024, 32, 32
ROUNDS, DELTA, ELS_CLIP_NORM = 1_000, 1e-6, 10.0
EPSILONS, COHORTS, ULS_GROUP_SIZES = (1.0, 4.0, 16.0, 64.0), (16, 64, 256), (1, 2, 4, 8, 16, 32)
QUICK_EPSILONS, QUICK_COHORTS, QUICK_ULS_GROUP_SIZES = (4.0,), (64,), (1, 8, 32)

TERMS = (
    f"each point is ({{epsilons}}, δ = {DELTA:g})-DP; unit: user; neighbouring relation: "
    f"add-or-remove-one user; {ROUNDS:,} rounds of Poisson sampling, of examples (ELS, mixture "
    "accountant) or of users (ULS, pld accountant)"
)


class Point(NamedTuple):
    """Noise at one (ε, M, G_ULS): of ELS, and of ULS for alike and for diverse gradients.

    Variances are per coordinate, in the unit of the squared gradient; ratios are ELS over ULS.
    """

    epsilon: float
    cohort_size: int
    uls_group_size: int
    gradients_per_round: int
    els_probability: float
    uls_probability: float
    els_noise_multiplier: float
    uls_noise_multiplier: float
    els_variance: float
    uls_variance_alike: float
    uls_variance_diverse: float
    ratio_alike: float
    ratio_diverse: float
    els_no_more_alike: bool
    els_no_more_diverse: bool


@study(
    "noise-variance",
    "At equal privacy and compute, diverse gradients make ULS the quieter one",
    __doc__,
)
def run(quick: bool) -> Result:
    """Calibrate and compare the noise."""
    epsilons = QUICK_EPSILONS if quick else EPSILONS
    cohorts = QUICK_COHORTS if quick else COHORTS
    sizes = QUICK_ULS_GROUP_SIZES if quick else ULS_GROUP_SIZES
    grid = [*product(epsilons, cohorts, sizes)]
    points = [compute(*setting) for setting in steps(grid, "noise variance")]
    records = [point._asdict() for point in points]
    promised = "ε = " + " or ".join(f"{epsilon:g}" for epsilon in epsilons)
    terms = TERMS.format(epsilons=promised)
    return Result(
        settings=(
            f"Terms: {terms}.",
            f"N = {NUM_USERS} users with K = {EXAMPLES_PER_USER} examples each, G_ELS = "
            f"{ELS_GROUP_SIZE}, L_ELS = {ELS_CLIP_NORM:g}; p = B/(G_ELS N), q = M/N.",
            "Calibrated noise multipliers are rounded up to five digits.",
        ),
        notes=[
            f"{kind} gradients: ELS adds no more noise than ULS in {sum(flags)} of {len(flags)} "
            "settings."
            for kind, flags in (
                ("Alike", [point.els_no_more_alike for point in points]),
                ("Diverse", [point.els_no_more_diverse for point in points]),
            )
        ],
        table=Table.of(
            records,
            {
                "ε": ("epsilon", "g"),
                "M": ("cohort_size", "d"),
                "G": ("uls_group_size", "d"),
                "B": ("gradients_per_round", ",d"),
                "σ ELS": ("els_noise_multiplier", "g"),
                "σ ULS": ("uls_noise_multiplier", "g"),
                "var ELS": ("els_variance", number),
                "ratio alike": ("ratio_alike", number),
                "ratio diverse": ("ratio_diverse", number),
            },
        ),
        records=records,
        figure=draw(points, terms),
    )


def compute(epsilon: float, cohort_size: int, uls_group_size: int) -> Point:
    """Return the noise of both samplers at one ε and one compute budget."""
    budget = cohort_size * uls_group_size
    p, q = budget / (ELS_GROUP_SIZE * NUM_USERS), cohort_size / NUM_USERS
    els_sigma = _noise_multiplier(p, ELS_GROUP_SIZE, epsilon)
    uls_sigma = _noise_multiplier(q, 1, epsilon)
    els = Noise(
        "els", ELS_GROUP_SIZE, budget, els_sigma, ELS_CLIP_NORM, els_sigma * ELS_CLIP_NORM / budget
    )
    alike, diverse = (
        Noise("uls", uls_group_size, cohort_size, uls_sigma, norm, uls_sigma * norm / cohort_size)
        for norm in (ELS_CLIP_NORM, ELS_CLIP_NORM / math.sqrt(uls_group_size))
    )
    return Point(
        epsilon=epsilon,
        cohort_size=cohort_size,
        uls_group_size=uls_group_size,
        gradients_per_round=budget,
        els_probability=p,
        uls_probability=q,
        els_noise_multiplier=els_sigma,
        uls_noise_multiplier=uls_sigma,
        els_variance=els.variance,
        uls_variance_alike=alike.variance,
        uls_variance_diverse=diverse.variance,
        ratio_alike=els.variance / alike.variance,
        ratio_diverse=els.variance / diverse.variance,
        els_no_more_alike=condition_7(els, alike),
        els_no_more_diverse=condition_7(els, diverse),
    )


def draw(points: list[Point], terms: str) -> Figure:
    """Draw variance against B: a panel for each M (rows) and ε (columns)."""
    epsilons = sorted({point.epsilon for point in points})
    cohorts = sorted({point.cohort_size for point in points})
    title = "At equal ε and compute, diverse gradients make ULS the quieter one"
    figure, panes = panels(
        (2.0 + 2.3 * len(epsilons), 1.5 + 1.8 * len(cohorts)),
        title if len(epsilons) > 1 else "Noise at equal ε and compute",
        terms,
        [[f"ε = {epsilon:g}, M = {cohort}" for epsilon in epsilons] for cohort in cohorts],
        x="B: gradients a round",
        y="noise variance",
        share=("row", "col"),
    )
    for axes, (cohort, epsilon) in zip(panes, product(cohorts, epsilons), strict=True):
        _curves(axes, [p for p in points if (p.epsilon, p.cohort_size) == (epsilon, cohort)])
    legend(figure, panes[0])
    return figure


_CURVES = {
    "ELS": ("els_variance", "o-", 1),
    "ULS, alike:\n$L_{ULS} = L_{ELS}$": ("uls_variance_alike", "s--", 0),
    "ULS, diverse:\n$L_{ULS} = L_{ELS}/\\sqrt{G}$": ("uls_variance_diverse", "s-", 2),
}


def _curves(axes: Axes, row: list[Point]) -> None:
    budgets = [point.gradients_per_round for point in row]
    for label, (key, form, hue) in _CURVES.items():
        values = [getattr(point, key) for point in row]
        axes.plot(budgets, values, form, color=colour(hue), ms=3.5, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets[::2], [f"{budget:,}" for budget in budgets[::2]])
    axes.set_yscale("log")


def _noise_multiplier(probability: float, units_per_user: int, epsilon: float) -> float:
    return calibrate_noise_multiplier(
        sampling=PoissonSampling(probability),
        units_per_user=units_per_user,
        rounds=ROUNDS,
        epsilon=epsilon,
        delta=DELTA,
    )
