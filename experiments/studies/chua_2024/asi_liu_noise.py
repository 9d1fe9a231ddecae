"""Chua et al. 2024, Figures 3 and 7: when the Asi & Liu filter adds less noise than its rival."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.studies.chua_2024.concentration_of_users import Measured, measure
from experiments.studies.common.output import (
    Shown,
    Study,
    check_folder,
    clean,
    new_figure,
    number,
    steps,
    to_csv,
    write_study,
)
from fedsim.accounting.above_threshold import failure_probability
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.concentration.filter import FilteredMean
from fedsim.concentration.sampling import ConcentratedSampling
from fedsim.report.style import INK, colour
from fedsim.sampling import PoissonSampling
from fedsim.utils.files import write_atomically

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
    """One (ε, T, n): standard deviations of a coordinate over C; those of the filter at τ = C.

    The filter's noise is proportional to τ, so each crossing is a ratio of two of them.
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


def run(out: Path, *, quick: bool) -> None:
    """Calibrate the noise, measure users' concentration, and write the study into `out`.

    Raises:
        ConfigError: `out` is not a folder for a study.
    """
    check_folder(out)
    grid = (
        product(QUICK_EPSILONS, QUICK_ROUNDS, QUICK_COHORTS)
        if quick
        else product(EPSILONS, ROUNDS, COHORTS)
    )
    points = [compute(*setting) for setting in steps([*grid], "noise of the filter")]
    measured = measure(*(QUICK_MEASURED if quick else MEASURED))
    write_atomically(out / "concentration.csv", to_csv([row._asdict() for row in measured]))
    study = Study(
        name="asi-liu-noise",
        title=f"The Asi & Liu filter adds less noise only below τ/C = {number(_highest(points))}",
        explanation=(
            "Chua et al. 2024, §5.3 and C.6 (Figures 3 and 7): effective noise, the standard "
            "deviation of the noise on a coordinate of the gradient estimate, of User-wise DP-SGD "
            "with clip norm C, σ C/n, and of the filter with concentration radius τ, which takes "
            "all N users every round. `printed` is the scale of Algorithm 3, τ √(8 log(e^ε T/δ)) "
            "σ/N, σ calibrated to (ε/2, δ/2); `proved` is 24 τ z/N, z calibrated by this "
            "project's own proof, for the filter of strategy `asi-liu`. A crossing is the τ/C "
            "below which the filter adds less noise.",
            "The figures have a panel for each number k of records a user. k stands in neither "
            "formula; it acts through the data. So the second part measures the τ/C that users' "
            "gradients need at the starting model, for several k: the least τ with which the score "
            "reaches 4N/5, over C, the median norm of the gradients, to which all are clipped. "
            "`concentration.csv` has the numbers.",
        ),
        settings=(
            f"Terms: {TERMS}.",
            f"N = {NUM_USERS:,} users, as many as Enron has senders (Table 1); T and n are not "
            "printed with the figures and are varied.",
            f"Measured on {measured[0].num_users} speakers of Shakespeare, tiny-gpt at its "
            f"{'random' if quick else 'pre-trained'} starting point, all parameters.",
        ),
        findings=findings(points, measured),
        table=Shown(
            ("ε", "T", "n", "user-wise, 1/C", "printed, 1/τ", "proved, 1/τ", "crossing", "proved"),
            [_cells(point) for point in points],
        ),
        records=[point._asdict() for point in points],
        figure=draw(points, measured),
    )
    write_study(study, out, quick=quick)


def compute(epsilon: float, rounds: int, cohort_size: int) -> Point:
    """Return the noise of each method at one setting."""
    sampled, everybody = PoissonSampling(cohort_size / NUM_USERS), PoissonSampling(1.0)
    userwise = calibrate_noise_multiplier(
        sampling=sampled, rounds=rounds, epsilon=epsilon, delta=DELTA
    )
    printed = calibrate_noise_multiplier(
        sampling=everybody, rounds=rounds, epsilon=epsilon / 2.0, delta=DELTA / 2.0
    )
    law = ConcentratedSampling(NUM_USERS, epsilon / 2.0)
    proved = calibrate_noise_multiplier(sampling=law, rounds=rounds, epsilon=epsilon, delta=DELTA)
    stddevs = (
        userwise / cohort_size,
        printed_sensitivity(epsilon, rounds) * printed,
        FilteredMean(1.0, NUM_USERS).sensitivity(math.inf) * proved,
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
    """Return √(8 log(e^ε T/δ))/N: what line 14 of Algorithm 3 multiplies σ τ by."""
    return math.sqrt(8.0 * (epsilon + math.log(rounds / DELTA))) / NUM_USERS


def findings(points: list[Point], measured: list[Measured]) -> list[str]:
    """Return the crossings, whether they agree with the paper, and how far users are from them."""
    lowest = min(points, key=lambda point: point.printed_crossing)
    highest = max(points, key=lambda point: point.printed_crossing)
    others = [point for point in points if point.printed_crossing >= PRINTED]
    agrees = "does not agree everywhere with" if others else "agrees with"
    where = ", ".join(f"ε = {p.epsilon:g}, T = {p.rounds}, n = {p.cohort_size:,}" for p in others)
    fair = [point.printed_crossing for point in points if point.cohort_size == NUM_USERS]
    best = max(point.proved_crossing for point in points)
    nearest = min(measured, key=lambda row: row.needed_ratio)
    apart = nearest.needed_ratio > highest.printed_crossing
    law = ConcentratedSampling(NUM_USERS, min(point.epsilon for point in points) / 2.0)
    wrong = failure_probability(law, max(point.rounds for point in points))
    return [
        f"Printed scale: the filter adds less noise only below τ/C = "
        f"{number(lowest.printed_crossing)} to {number(highest.printed_crossing)}. This {agrees} "
        f'the paper\'s "only if τ/C < {PRINTED:g}": {len(points) - len(others)} of {len(points)} '
        f"settings{f'; not {where}' if others else ''}.",
        "Where User-wise DP-SGD takes all users too, n = N, and so as many gradients as the "
        f"filter: below {number(min(fair))} to {number(max(fair))}.",
        f"Proved scale: below {number(best)} at the most.",
        f"Measured users need τ/C = {number(nearest.needed_ratio)} at the least, with "
        f"k = {nearest.group_size}: {number(nearest.needed_ratio / highest.printed_crossing)} "
        "times the highest crossing. "
        + ("At any τ that pays the test would halt." if apart else "Some τ passes and pays."),
        f"The test itself is wrong with probability at most {number(wrong)} over a run at the "
        "smallest ε: for this many users it is no obstacle.",
    ]


def draw(points: list[Point], measured: list[Measured]) -> Figure:
    """Draw noise against τ/C, a panel for each ε, at the first T; and the measured τ/C."""
    epsilons = sorted({point.epsilon for point in points})
    rounds = min(point.rounds for point in points)
    figure = new_figure(
        3.2 + 2.6 * len(epsilons),
        4.4,
        "The filter pays only for concentrated gradients",
        f"{TERMS[0].upper()}{TERMS[1:]}. N = {NUM_USERS:,}, T = {rounds}.",
    )
    panels = figure.subplots(1, len(epsilons), squeeze=False, sharey=True)[0]
    ratios = np.geomspace(1e-3, 3.0, 50)
    needed = [row.needed_ratio for row in measured]
    for axes, epsilon in zip(panels, epsilons, strict=True):
        row = [p for p in points if (p.epsilon, p.rounds) == (epsilon, rounds)]
        clean(axes, f"ε = {epsilon:g}")
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
        axes.set_xlabel("τ/C", fontsize=8, color=INK)
    panels[0].set_ylabel("noise of a coordinate, over C", fontsize=8, color=INK)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    return figure


def _highest(points: list[Point]) -> float:
    return max(point.printed_crossing for point in points)


def _cells(point: Point) -> list[str]:
    return [
        f"{point.epsilon:g}",
        str(point.rounds),
        f"{point.cohort_size:,}",
        number(point.userwise_stddev),
        number(point.printed_stddev),
        number(point.proved_stddev),
        number(point.printed_crossing),
        number(point.proved_crossing),
    ]
