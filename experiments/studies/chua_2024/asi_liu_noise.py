"""Chua et al. 2024, Figures 3 and 7: noise of the Asi & Liu filter and of User-wise DP-SGD.

Effective noise is the standard deviation of the noise on a coordinate of the gradient estimate.
User-wise DP-SGD with clip norm C has σ C/n. The filter with concentration radius τ uses all N users
in every round. `printed` is the scale of Algorithm 3, τ √(8 log(e^ε T/δ)) σ/N, with σ calibrated to
(ε/2, δ/2). `proved` is 24 τ z/N for the filter of strategy `asi-liu`, with z calibrated by this
project's own proof. A crossing is the τ/C below which the filter adds less noise; the paper states
τ/C < 0.1.

The paper's figures have a panel for each number k of records per user. Neither formula contains k;
it acts through the data. So the second part measures, for several k, the τ/C that users' gradients
need at the starting model. τ is the smallest radius with a score of 4N/5. C is the median norm of
the gradients, and all are clipped to it. `concentration.csv` has the numbers.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.experiments.studies.chua_2024.asi_liu.filter import FilteredMean
from fedsim.experiments.studies.chua_2024.asi_liu.sampling import ConcentratedSampling
from fedsim.experiments.studies.chua_2024.concentration_of_users import Measured, measure
from fedsim.experiments.studies.common.output import (
    Result,
    Table,
    legend,
    number,
    panels,
    steps,
    study,
)
from fedsim.report.style import colour
from fedsim.sampling import PoissonSampling

NUM_USERS = 18_195  # senders of Enron: 240,173 records, 13.2 a sender (Table 1)
DELTA, PRINTED = 1e-5, 0.1
EPSILONS, ROUNDS, COHORTS = (0.5, 1.0, 3.0, 8.0), (100, 1_000), (256, 1_024, 4_096, NUM_USERS)
QUICK_EPSILONS, QUICK_ROUNDS, QUICK_COHORTS = (3.0,), (100,), (1_024, NUM_USERS)
MEASURED: tuple[int, tuple[int, ...], int | None] = (100, (1, 2, 5, 10), None)
QUICK_MEASURED: tuple[int, tuple[int, ...], int | None] = (20, (1, 2), 0)

TERMS = (
    f"each method at (ε, δ = {DELTA:g}); unit: user. User-wise DP-SGD: add-or-remove-one user, "
    "Poisson sampling of users, pld accountant. Filter as printed: all users every round, noise "
    "multiplier by the pld accountant at (ε/2, δ/2), scale by Algorithm 3, whose guarantee is the "
    "paper's and was not checked. Filter as proved here: replace-one user, all users every round, "
    "above-threshold accountant"
)


class Point(NamedTuple):
    """Noise at one (ε, T, n): standard deviation of a coordinate over C; for the filter at τ = C.

    The filter's noise is proportional to τ, so a crossing is the ratio of two of them.
    """

    epsilon: float
    rounds: int
    cohort_size: int
    userwise_noise_multiplier: float
    printed_noise_multiplier: float
    proved_noise_multiplier: float
    userwise_stddev: float
    printed_stddev: float
    proved_stddev: float
    printed_crossing: float
    proved_crossing: float


@study("asi-liu-noise", "Noise of the Asi & Liu filter and of User-wise DP-SGD", __doc__)
def run(quick: bool) -> Result:
    """Calibrate the noise, and measure users' concentration."""
    grid = (
        product(QUICK_EPSILONS, QUICK_ROUNDS, QUICK_COHORTS)
        if quick
        else product(EPSILONS, ROUNDS, COHORTS)
    )
    points = [compute(*setting) for setting in steps([*grid], "noise of the filter")]
    measured = measure(*(QUICK_MEASURED if quick else MEASURED))
    records = [point._asdict() for point in points]
    below = sum(point.printed_crossing < PRINTED for point in points)
    needed = min(row.needed_ratio for row in measured)
    return Result(
        settings=(
            f"Terms: {TERMS}.",
            f"N = {NUM_USERS:,} users, as many as Enron has senders (Table 1); T and n are not "
            "printed with the figures and are varied.",
            f"Measured on {measured[0].num_users} speakers of Shakespeare, tiny-gpt at its "
            f"{'random' if quick else 'pre-trained'} starting point, all parameters.",
        ),
        notes=(
            f"The crossing of the printed scale is below {PRINTED:g} in {below} of "
            f"{len(points)} settings.",
            f"The measured users need a τ/C of at least {number(needed)}.",
        ),
        table=Table.of(
            records,
            {
                "ε": ("epsilon", "g"),
                "T": ("rounds", "d"),
                "n": ("cohort_size", ",d"),
                "user-wise, 1/C": ("userwise_stddev", number),
                "printed, 1/τ": ("printed_stddev", number),
                "proved, 1/τ": ("proved_stddev", number),
                "crossing": ("printed_crossing", number),
                "proved": ("proved_crossing", number),
            },
        ),
        records=records,
        figure=draw(points, measured),
        more={"concentration.csv": [row._asdict() for row in measured]},
    )


def compute(epsilon: float, rounds: int, cohort_size: int) -> Point:
    """Return the noise of each method at one setting."""
    sampled, all_users = PoissonSampling(cohort_size / NUM_USERS), PoissonSampling(1.0)
    userwise = calibrate_noise_multiplier(
        sampling=sampled, rounds=rounds, epsilon=epsilon, delta=DELTA
    )
    printed = calibrate_noise_multiplier(
        sampling=all_users, rounds=rounds, epsilon=epsilon / 2.0, delta=DELTA / 2.0
    )
    concentrated = ConcentratedSampling(NUM_USERS, epsilon / 2.0, rounds)
    proved = calibrate_noise_multiplier(
        sampling=concentrated, rounds=rounds, epsilon=epsilon, delta=DELTA
    )
    stddevs = (
        userwise / cohort_size,
        printed_sensitivity(epsilon, rounds) * printed,
        FilteredMean(1.0, NUM_USERS).sensitivity(1.0) * proved,
    )
    return Point(
        epsilon,
        rounds,
        cohort_size,
        userwise,
        printed,
        proved,
        *stddevs,
        printed_crossing=stddevs[0] / stddevs[1],
        proved_crossing=stddevs[0] / stddevs[2],
    )


def printed_sensitivity(epsilon: float, rounds: int) -> float:
    """Return √(8 log(e^ε T/δ))/N, the factor of σ τ in line 14 of Algorithm 3."""
    return math.sqrt(8.0 * (epsilon + math.log(rounds / DELTA))) / NUM_USERS


def draw(points: list[Point], measured: list[Measured]) -> Figure:
    """Draw noise against τ/C at the first T, with a panel for each ε, and the measured τ/C."""
    epsilons = sorted({point.epsilon for point in points})
    rounds = min(point.rounds for point in points)
    figure, panes = panels(
        (3.2 + 2.6 * len(epsilons), 4.4),
        "The filter adds less noise only if gradients are concentrated",
        f"{TERMS}. N = {NUM_USERS:,}, T = {rounds}",
        [[f"ε = {epsilon:g}" for epsilon in epsilons]],
        x="τ/C",
        y="noise per coordinate / C",
    )
    ratios = np.geomspace(1e-3, 3.0, 50)
    needed = [row.needed_ratio for row in measured]
    for axes, epsilon in zip(panes, epsilons, strict=True):
        row = [p for p in points if (p.epsilon, p.rounds) == (epsilon, rounds)]
        axes.plot(ratios, ratios * row[0].printed_stddev, "-", color=colour(1), label="printed")
        axes.plot(ratios, ratios * row[0].proved_stddev, "--", color=colour(1), label="proved here")
        for index, point in enumerate(row):
            name = f"user-wise, n = {point.cohort_size:,}"
            axes.axhline(
                point.userwise_stddev, color=colour(0), ls=("-", "--", "-.", ":")[index], label=name
            )
        axes.axvspan(min(needed), max(needed), color=colour(2), alpha=0.25, label="users need")
        axes.set_xscale("log")
        axes.set_yscale("log")
    legend(figure, panes[0])
    return figure
