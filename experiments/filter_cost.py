"""Compute the number of runs within a shared budget, by four rules.

`python -m fedsim.experiments.filter_cost` prints the table of docs/accounting.md. Every run is
calibrated to the same ε at the budget's δ.

- fixed in advance: tight composition of all runs; valid if all runs were registered together.
- filter: `accounting.privacy_filter`, at the Rényi order that the first run fixes.
- basic: Σ ε and Σ δ (a filter by Rogers et al. 2016, arXiv:1605.08294), with δ split equally.
- advanced: Whitehouse et al. 2023 (arXiv:2203.05481), Theorem 1: half of δ is split equally over
  the runs, half is δ' in sqrt(2 log(1/δ') Σ ε²) + Σ ε²/2.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.events import RoundCost
from fedsim.accounting.privacy_filter import RenyiFilter, best_order
from fedsim.sampling import PoissonSampling, Relation

DELTA = 1e-5
MECHANISMS = (  # probability, rounds of a run, units per user
    (1.0, 1, 1),
    (0.01, 1_000, 1),
    (0.001, 10_000, 1),
    (0.01, 1_000, 8),
)
BUDGETS = ((8.0, 1.0), (8.0, 2.0), (8.0, 4.0), (2.0, 0.5))  # ε of all runs, ε of one run
_MOST = 200


def row(
    probability: float, rounds: int, units: int, budget: float, each: float
) -> tuple[int, int, int, int, float]:
    """Return the number of runs that fit by each of the four rules, and the filter's order."""
    sampler = PoissonSampling(probability)
    noise = calibrate_noise_multiplier(
        sampling=sampler, rounds=rounds, epsilon=each, delta=DELTA, units_per_user=units
    )
    cost = RoundCost(sampler, noise, units)
    order = best_order(budget, DELTA, Relation.ADD_OR_REMOVE, [(cost, rounds)])
    rule = RenyiFilter(budget, DELTA, Relation.ADD_OR_REMOVE, order)

    def alone(delta: float) -> float:
        return epsilon(cost, rounds, delta)

    def by_advanced(runs: int) -> bool:
        squares = runs * alone(DELTA / 2.0 / runs) ** 2
        return math.sqrt(2.0 * math.log(2.0 / DELTA) * squares) + squares / 2.0 <= budget

    return (
        _most(lambda runs: epsilon(cost, runs * rounds, DELTA) <= budget),
        _most(lambda runs: rule.pays_for([(cost, runs * rounds)])),
        _most(lambda runs: runs * alone(DELTA / runs) <= budget),
        _most(by_advanced),
        order,
    )


def _most(fits: Callable[[int], bool]) -> int:
    """Return the largest number of runs that fits; `fits` must be monotone."""
    return bisect_left(range(1, _MOST), True, key=lambda runs: not fits(runs))


def main() -> None:
    """Print the table as Markdown."""
    print(  # noqa: T201
        "| a run: probability, rounds, units a user | ε of one run | budget ε | fixed in advance "
        "| filter (order) | basic | advanced |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    for probability, rounds, units in MECHANISMS:
        for budget, each in BUDGETS:
            tight, filtered, basic, advanced, order = row(probability, rounds, units, budget, each)
            print(  # noqa: T201
                f"| {probability:g}, {rounds:,}, {units} | {each:g} | {budget:g} | {tight} | "
                f"{filtered} ({order:g}) | {basic} | {advanced} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
