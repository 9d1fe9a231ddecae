"""What McMahan et al. 2018 print in Tables 1 and 2, digit for digit.

Both are of the moments accountant with Poisson sampling of users at q = C̃/K and equal weights.
The ε are texts, since "7.50" says to how many digits it was printed.
"""

from __future__ import annotations

from typing import NamedTuple

TABLE_1_ROUNDS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
DELTA_EXPONENT = 1.1
"""Of Table 1, whose δ is K^-1.1."""

TABLE_2_ROUNDS = 5_000
TABLE_2_DELTA = 1e-9
TABLE_2_NOISE_MULTIPLIER = 1.0
"""Of Table 2, whose cohorts are chosen to make it so (§3)."""


class Table1Row(NamedTuple):
    """A row of Table 1.

    Attributes:
        users: K.
        cohort: C̃, the expected number of users a round.
        noise_multiplier: z.
        epsilons: as printed, after each of `TABLE_1_ROUNDS`.
    """

    users: int
    cohort: int
    noise_multiplier: float
    epsilons: tuple[str, str, str, str, str, str, str]


class Table2Row(NamedTuple):
    """A private row of Table 2.

    Attributes:
        noise_stddev: σ, of the noise on a coordinate of the average update.
        clip_norm: S.
        users: K.
        cohort: C̃, which is S/σ to the nearest user.
        epsilon: as printed.
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
