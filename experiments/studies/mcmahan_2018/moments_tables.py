"""McMahan et al. 2018, Tables 1 and 2, by the moments accountant and two later accountants.

The tables have ε as printed, recomputed by the moments accountant (integer orders 2 to 33, as in
the paper), and by two later accountants for the same mechanism: rdp (fractional orders and a better
conversion) and pld (numerical composition, tight up to its grid).

The mechanism is a sum of bounded updates with Poisson sampling of users and equal weights. The
paper chooses the cohorts of Table 2 so that the noise multiplier is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.experiments.studies.common.output import (
    Result,
    Table,
    epsilon_number,
    legend,
    panels,
    steps,
    study,
)
from fedsim.report.style import INK, MUTED, colour
from fedsim.sampling import PoissonSampling

TABLE_1_ROUNDS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
DELTA_EXPONENT = 1.1
"""Exponent of δ = K^-1.1 in Table 1."""

TABLE_2_ROUNDS = 5_000
TABLE_2_DELTA = 1e-9
TABLE_2_NOISE_MULTIPLIER = 1.0
"""Noise multiplier of Table 2, whose cohorts are chosen for it (§3)."""


class Table1Row(NamedTuple):
    """A row of Table 1.

    Attributes:
        users: number of users K.
        cohort: C̃, the expected number of users per round.
        noise_multiplier: noise multiplier z.
        epsilons: printed ε, after each of `TABLE_1_ROUNDS`.
    """

    users: int
    cohort: int
    noise_multiplier: float
    epsilons: tuple[str, str, str, str, str, str, str]


class Table2Row(NamedTuple):
    """A private row of Table 2.

    Attributes:
        noise_stddev: σ, standard deviation of the noise on a coordinate of the average update.
        clip_norm: clip norm S.
        users: number of users K.
        cohort: C̃ = S/σ, rounded to the nearest integer.
        epsilon: printed ε.
    """

    noise_stddev: float
    clip_norm: float
    users: int
    cohort: int
    epsilon: str


TABLE_1 = (
    Table1Row(10**5, 100, 1.0, ("0.97", "0.98", "1.00", "1.07", "1.18", "2.21", "7.50")),
    Table1Row(10**6, 10, 1.0, ("0.68", "0.69", "0.69", "0.69", "0.69", "0.72", "0.73")),
    Table1Row(10**6, 1_000, 1.0, ("1.17", "1.17", "1.20", "1.28", "1.39", "2.44", "8.13")),
    Table1Row(10**6, 10_000, 1.0, ("1.73", "1.92", "2.08", "3.06", "8.49", "32.38", "187.01")),
    Table1Row(10**6, 1_000, 3.0, ("0.47", "0.47", "0.48", "0.48", "0.49", "0.67", "1.95")),
    Table1Row(10**9, 1_000, 1.0, ("0.84", "0.84", "0.84", "0.85", "0.88", "0.88", "0.88")),
)

TABLE_2 = (
    Table2Row(0.003, 15.0, 763_430, 5_000, "4.634"),
    Table2Row(0.006, 10.0, 763_430, 1_667, "2.314"),
    Table2Row(0.012, 15.0, 763_430, 1_250, "2.038"),
    Table2Row(0.003, 15.0, 10**8, 5_000, "1.152"),
    Table2Row(0.006, 10.0, 10**8, 1_667, "0.991"),
    Table2Row(0.012, 15.0, 10**8, 1_250, "0.987"),
)


QUICK_ROUNDS = 100
TERMS = (
    f"δ = K^-{DELTA_EXPONENT:g} (Table 1) or {TABLE_2_DELTA:g} (Table 2); unit: user; "
    "neighbouring relation: add-or-remove-one user; sampler: Poisson sampling of users, q = C̃/K; "
    "accountants: moments, rdp, pld"
)


class Setting(NamedTuple):
    """Setting of one number of the paper, and the printed number."""

    table: int
    users: int
    cohort: int
    noise_multiplier: float
    rounds: int
    delta: float
    printed: str


class Value(NamedTuple):
    """ε of a setting by each accountant."""

    setting: Setting
    moments: float
    rdp: float
    pld: float

    @property
    def reproduced(self) -> bool:
        """Whether the moments accountant gives the printed digits."""
        places = len(self.setting.printed.partition(".")[2])
        return f"{self.moments:.{places}f}" == self.setting.printed


@study(
    "moments-tables",
    "The ε that McMahan et al. printed in 2018 hold, and newer accountants give smaller ones",
    __doc__,
)
def run(quick: bool) -> Result:
    """Compute both tables."""
    chosen = [s for s in settings() if not quick or s.rounds <= QUICK_ROUNDS or s.table == 2]
    values = [compute(setting) for setting in steps(chosen, "moments tables")]
    records = [
        {**v.setting._asdict(), "moments": v.moments, "rdp": v.rdp, "pld": v.pld} for v in values
    ]
    return Result(
        settings=(
            f"{TERMS}.",
            f"Table 2: {TABLE_2_ROUNDS:,} rounds, noise multiplier {TABLE_2_NOISE_MULTIPLIER:g}.",
            "The CSV has full precision; ε of our accountants is rounded up here.",
        ),
        notes=[
            f"The moments accountant reproduces the printed digits of "
            f"{sum(value.reproduced for value in values)} of {len(values)} numbers."
        ],
        table=Table.of(
            records,
            {
                "table": ("table", "d"),
                "K": ("users", ",d"),
                "C̃": ("cohort", ",d"),
                "z": ("noise_multiplier", "g"),
                "rounds": ("rounds", ",d"),
                "δ": ("delta", ".3g"),
                "printed": ("printed", "s"),
                **{name: (name, epsilon_number) for name in ("moments", "rdp", "pld")},
            },
        ),
        records=records,
        figure=draw(values),
    )


def settings() -> list[Setting]:
    """Return the 42 settings of Table 1 and the six private ones of Table 2."""
    first = [
        Setting(1, row.users, row.cohort, row.noise_multiplier, rounds, delta, printed)
        for row in TABLE_1
        for delta in [row.users**-DELTA_EXPONENT]
        for rounds, printed in zip(TABLE_1_ROUNDS, row.epsilons, strict=True)
    ]
    z, rounds, delta = TABLE_2_NOISE_MULTIPLIER, TABLE_2_ROUNDS, TABLE_2_DELTA
    return first + [
        Setting(2, row.users, row.cohort, z, rounds, delta, row.epsilon) for row in TABLE_2
    ]


def compute(setting: Setting) -> Value:
    """Return ε of one setting by the three accountants."""
    cost = RoundCost(PoissonSampling(setting.cohort / setting.users), setting.noise_multiplier)
    moments, rdp, pld = (
        epsilon(cost, setting.rounds, setting.delta, name) for name in ("moments", "rdp", "pld")
    )
    return Value(setting, moments, rdp, pld)


def draw(values: Sequence[Value]) -> Figure:
    """Draw ε against rounds, a panel for each row of Table 1."""
    heads = [
        f"K = {row.users:,}, C̃ = {row.cohort:,}, z = {row.noise_multiplier:g}" for row in TABLE_1
    ]
    figure, panes = panels(
        (10.0, 5.4),
        "Printed in 2018, reproduced, and tightened since: ε over the rounds of Table 1",
        f"Upper bounds on ε; {TERMS}",
        [heads[:3], heads[3:]],
        x="rounds",
        y="user-level ε",
        share=(True, True),
    )
    for axes, row in zip(panes, TABLE_1, strict=True):
        _curves(axes, [v for v in values if v.setting.table == 1 and v.setting[1:4] == row[:3]])
    legend(figure, panes[0])
    return figure


def _curves(axes: Axes, row: Sequence[Value]) -> None:
    rounds = [value.setting.rounds for value in row]
    printed = [float(value.setting.printed) for value in row]
    axes.plot(rounds, [v.moments for v in row], "-", color=colour(1), label="moments")
    axes.plot(rounds, [v.rdp for v in row], "--", color=MUTED, linewidth=1.2, label="rdp")
    axes.plot(rounds, [v.pld for v in row], "s-", color=colour(0), ms=3, label="pld")
    axes.plot(rounds, printed, "o", mfc="none", mec=INK, ms=6, label="printed")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, numticks=4))
    axes.yaxis.set_major_locator(LogLocator(base=100, numticks=8))
