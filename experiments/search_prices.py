"""Compute ε of searches for the best of several runs: the table of docs/tuning.md.

python -m fedsim.experiments.search_prices
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fedsim.accounting.accountants import epsilon, epsilon_of_composition
from fedsim.accounting.events import RoundCost
from fedsim.accounting.rounding import round_up
from fedsim.accounting.search import Search
from fedsim.sampling import PoissonSampling

ROUNDS, DELTA = 100, 1e-5


def main() -> None:
    """Print a row for each noise multiplier."""
    for noise in (0.8, 1.0, 1.5, 2.0, 3.0):
        alone = RoundCost(PoissonSampling(0.1), noise)

        def of(
            trials: float,
            stopping: Literal["geometric", "logarithmic"],
            accountant: str | None = None,
            cost: RoundCost = alone,
        ) -> float:
            search = Search(trials, ROUNDS, 10.0, stopping)
            return epsilon(replace(cost, search=search), ROUNDS, DELTA, accountant)

        trial = replace(alone, search=Search(2.0, ROUNDS, 10.0)).trial
        cells = [
            [epsilon(alone, ROUNDS, DELTA)],
            [epsilon_of_composition(trial, DELTA)],
            [of(trials, "geometric") for trials in (4.0, 10.0)],
            [of(trials, "logarithmic") for trials in (4.0, 10.0)],
            [of(trials, "geometric", "rdp") for trials in (4.0, 10.0)],
        ]
        shown = [", ".join(f"{round_up(value, 4):g}" for value in cell) for cell in cells]
        print(f"| {noise:g} | {' | '.join(shown)} |")  # noqa: T201  (what it is for)


if __name__ == "__main__":
    main()
