"""Charles et al. 2024, Figure 1: ε of ELS by the mixture accountant and by group privacy.

An upper bound on the user-level ε of example-level sampling (ELS), when each user has up to `group
size` examples in the pool. The mixture-of-Gaussians accountant analyses the mechanism (Theorem 1).
Group privacy multiplies the ε of one example (Vadhan 2017, Lemma 2.2), and multiplies δ by a factor
exponential in the group size. It diverges if it needs a δ of one example too small for floating
point.

The paper does not print its noise multipliers; these are ours.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.experiments.studies.common.output import (
    Result,
    Table,
    epsilon_number,
    legend,
    listed,
    panels,
    steps,
    study,
)
from fedsim.report.style import INK, colour
from fedsim.sampling import PoissonSampling

ROUNDS, PROBABILITY, DELTA = 2_000, 0.01, 1e-6
NOISE_MULTIPLIERS = (1.0, 2.0, 4.0, 8.0)
GROUP_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
QUICK_NOISE_MULTIPLIERS = (2.0, 8.0)
QUICK_GROUP_SIZES = (1, 4, 16)

TERMS = (
    f"δ = {DELTA:g}; unit: user; neighbouring relation: add-or-remove-one user; sampler: Poisson "
    f"sampling of examples, p = {PROBABILITY:g}; {ROUNDS:,} rounds; accountants: mixture, "
    "group-privacy"
)


class Point(NamedTuple):
    """ε of one setting by both accountants; group privacy's is inf where it diverges."""

    noise_multiplier: float
    group_size: int
    epsilon_mixture: float
    epsilon_group_privacy: float

    @property
    def ratio(self) -> float:
        """Group privacy's ε over the mixture's."""
        return self.epsilon_group_privacy / self.epsilon_mixture


@study(
    "accountant-gap",
    "Group privacy diverges as groups grow; the mixture accountant does not",
    __doc__,
)
def run(quick: bool) -> Result:
    """Compute ε by both accountants."""
    noises = QUICK_NOISE_MULTIPLIERS if quick else NOISE_MULTIPLIERS
    sizes = QUICK_GROUP_SIZES if quick else GROUP_SIZES
    points = [compute(*setting) for setting in steps([*product(noises, sizes)], "accountant gap")]
    return Result(
        settings=(
            f"{TERMS}.",
            f"noise multipliers {listed(noises)}; group sizes {listed(sizes)}.",
        ),
        table=Table.of(
            [{**point._asdict(), "ratio": point.ratio} for point in points],
            {
                "noise multiplier": ("noise_multiplier", "g"),
                "group size": ("group_size", "d"),
                "ε mixture": ("epsilon_mixture", epsilon_number),
                "ε group privacy": (
                    "epsilon_group_privacy",
                    lambda value: "diverges" if math.isinf(value) else epsilon_number(value),
                ),
                "ratio": ("ratio", lambda value: "–" if math.isinf(value) else f"{value:.3f}"),
            },
        ),
        records=[point._asdict() for point in points],
        figure=draw(points),
    )


def compute(noise_multiplier: float, group_size: int) -> Point:
    """Return ε of one setting by both accountants."""
    cost = RoundCost(PoissonSampling(PROBABILITY), noise_multiplier, group_size)
    return Point(
        noise_multiplier,
        group_size,
        epsilon(cost, ROUNDS, DELTA, "mixture"),
        epsilon(cost, ROUNDS, DELTA, "group-privacy"),
    )


def draw(points: list[Point]) -> Figure:
    """Draw ε against the group size; a cross ends a group-privacy curve where it diverges."""
    figure, (axes,) = panels(
        (8.0, 4.6),
        "Group privacy diverges as groups grow; the mixture accountant does not",
        f"ε is an upper bound; {TERMS}. ✕: group privacy diverges at the next group size",
        [[""]],
        x="group size: examples of a user in the pool",
        y="user-level ε",
    )
    noises = sorted({point.noise_multiplier for point in points})
    for index, noise in enumerate(noises):
        row = [point for point in points if point.noise_multiplier == noise]
        _curves(axes, row, colour(index))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({point.group_size for point in points})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    handles = [
        Line2D([], [], color=colour(i), linewidth=2, label=f"noise multiplier {noise:g}")
        for i, noise in enumerate(noises)
    ]
    handles += [
        Line2D([], [], color=INK, label="mixture (Theorem 1)"),
        Line2D([], [], color=INK, linestyle="--", label="group privacy"),
        Line2D([], [], color=INK, marker="X", linestyle="none", label="diverges after this"),
    ]
    legend(figure, handles)
    return figure


def _curves(axes: Axes, row: list[Point], shade: str) -> None:
    sizes = [point.group_size for point in row]
    axes.plot(sizes, [p.epsilon_mixture for p in row], "o-", color=shade, markersize=3)
    finite = [
        (p.group_size, p.epsilon_group_privacy) for p in row if p.epsilon_group_privacy < math.inf
    ]
    if not finite:
        return
    xs, ys = zip(*finite, strict=True)
    axes.plot(xs, ys, "--", color=shade)
    if len(finite) < len(row):
        axes.plot(xs[-1], ys[-1], "X", color=shade, markersize=8)
