"""What the numbers of the mean-estimation study say about the claims of Appendix E."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.studies.charles_2024.mean_simulation import Sampler, Sweep
from experiments.studies.common.intervals import Interval, ratio_interval

ELS = Sampler("example", 16)
COMPARABLE = 1.05  # a loss at most this much over another's is called comparable


class Case(NamedTuple):
    """One point of a panel: ε, B and σ₂."""

    epsilon: float
    budget: int
    within_user_stddev: float


DEFAULT = Case(epsilon=1.0, budget=64, within_user_stddev=1.0)
Results = dict[tuple[Case, Sampler], Sweep]

_SYMBOLS = {"epsilon": "ε", "budget": "B", "within_user_stddev": "σ₂"}
_AXES = {
    "epsilon": "ε",
    "budget": "B: gradients a round",
    "within_user_stddev": "σ₂: spread of a user's examples",
}


@dataclass(frozen=True)
class Panel:
    """A panel of the figure: which field of `Case` takes which values, ascending."""

    varied: str
    values: tuple[float, ...] | tuple[int, ...]

    @property
    def cases(self) -> list[Case]:
        """The defaults but for the field that varies."""
        return [Case(**{**DEFAULT._asdict(), self.varied: value}) for value in self.values]

    @property
    def symbol(self) -> str:
        """The letter of what varies."""
        return _SYMBOLS[self.varied]

    @property
    def axis(self) -> str:
        """The label of the axis."""
        return _AXES[self.varied]

    @property
    def label(self) -> str:
        """What is fixed."""
        fixed = [name for name in Case._fields if name != self.varied]
        return ", ".join(f"{_SYMBOLS[name]} = {getattr(DEFAULT, name):g}" for name in fixed)


def findings(results: Results, panels: tuple[Panel, ...]) -> list[str]:
    """Return sentences: G = 1 against ELS, what larger groups gain and where, and the sweep."""
    cases = list(dict.fromkeys(case for panel in panels for case in panel.cases))
    return [
        *_one_example_against_els(results, cases),
        *(_larger_groups(results, panel) for panel in panels),
        _best_against_els(results, cases),
        _choice(results),
    ]


def _one_example_against_els(results: Results, cases: list[Case]) -> list[str]:
    single = Sampler("user", 1)
    ratios = {
        case: ratio_interval(
            results[case, single].errors_of_best, results[case, ELS].errors_of_best
        )
        for case in cases
        if (case, single) in results
    }
    lower = sum(ratio.high < 1.0 for ratio in ratios.values())
    higher = [case for case, ratio in ratios.items() if ratio.low > 1.0]
    worst, largest = max(ratios.items(), key=lambda pair: pair[1].value)
    holds = largest.value <= COMPARABLE
    sentences = [
        f"ULS with G = 1 over ELS, ratio of losses: the interval lies below 1 in {lower} of "
        f"{len(ratios)} cases, above 1 in {len(higher)}, around 1 in the others; the largest "
        f"ratio is {largest}, at {_name(worst)}. "
        f"“Comparable if not better” {'holds' if holds else 'does not hold'} here, if at most "
        f"{COMPARABLE - 1:.0%} more is comparable."
    ]
    if higher:
        listed = "; ".join(f"{_name(case)}: {ratios[case]}" for case in higher)
        sentences.append(f"ELS is ahead of ULS with G = 1 by more than chance at {listed}.")
    return sentences


def _larger_groups(results: Results, panel: Panel) -> str:
    """Compare the group size that is best on the first half with the smallest, on the second."""
    gains = [(case, *_gain(results, case)) for case in panel.cases]
    listed = ", ".join(
        f"{getattr(case, panel.varied):g}: G = {size}, {ratio}" for case, size, ratio in gains
    )
    # Where G = 1 is not possible the gain is over another group size: not to be compared.
    alike = [gain for gain in gains if (gain[0], Sampler("user", 1)) in results]
    first, last = alike[0], alike[-1]
    low, high = (first, last) if panel.varied != "epsilon" else (last, first)
    grows = high[2].high < low[2].low
    shrinks = high[2].low > low[2].high
    where = "small" if panel.varied == "epsilon" else "large"
    verdict = "holds" if grows else "does not hold: the reverse" if shrinks else "is not decided"
    return (
        f"By {panel.symbol}, the best group size and its loss over that of the smallest possible: "
        f"{listed}. That larger groups gain more where {panel.symbol} is {where} {verdict} between "
        f"{panel.symbol} = {getattr(low[0], panel.varied):g} ({low[2]}) and "
        f"{getattr(high[0], panel.varied):g} ({high[2]})."
    )


def _gain(results: Results, case: Case) -> tuple[int, Interval]:
    sizes = sorted(s.group_size for c, s in results if c == case and s.level == "user")
    half = len(results[case, Sampler("user", sizes[0])].errors) // 2
    sweeps = {size: results[case, Sampler("user", size)] for size in sizes}
    first_half = {size: sweep.errors[:half].mean(axis=0).min() for size, sweep in sweeps.items()}
    best = min(first_half, key=lambda size: first_half[size])
    smallest = sweeps[sizes[0]].errors_of_second_half
    return best, ratio_interval(sweeps[best].errors_of_second_half, smallest)


def _best_against_els(results: Results, cases: Iterable[Case]) -> str:
    ratios = {}
    for case in cases:
        size, _ = _gain(results, case)
        best = results[case, Sampler("user", size)].errors_of_second_half
        ratios[case] = ratio_interval(best, results[case, ELS].errors_of_second_half)
    lower = sum(ratio.high < 1.0 for ratio in ratios.values())
    higher = sum(ratio.low > 1.0 for ratio in ratios.values())
    far, near = (choose(ratios, key=lambda case: ratios[case].value) for choose in (min, max))
    return (
        f"ULS with its best group size over ELS: below 1 in {lower} of {len(ratios)} cases and "
        f"above in {higher} by more than chance; from {ratios[far]} at {_name(far)} to "
        f"{ratios[near]} at {_name(near)}."
    )


def _choice(results: Results) -> str:
    """Say what choosing the best of a sweep on the trials that are reported flatters."""
    flattery = []
    for sweep in results.values():
        least = sweep.errors[len(sweep.errors) // 2 :].mean(axis=0).min()
        flattery.append(float(sweep.errors_of_second_half.mean() / least))
    edges = sum(sweep.at_edge for sweep in results.values())
    return (
        f"On the second half of the trials, what was best on the first half loses at most "
        f"{max(flattery) - 1:.1%} more than what is best there, in the median "
        f"{np.median(flattery) - 1:.1%}. The best learning rate lies on the edge of the sweep in "
        f"{edges} of {len(results)} sweeps."
    )


def _name(case: Case) -> str:
    return f"ε = {case.epsilon:g}, B = {case.budget}, σ₂ = {case.within_user_stddev:g}"
