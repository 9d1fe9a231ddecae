"""Which strategy was better in a cell, whether the plan had recommended it, and by what margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedsim.planner.weighing import Weighed
from fedsim.report.grid_result import CellResult, Interval, interval

Better = Literal["uls", "els", "neither"]


@dataclass(frozen=True)
class Verdict:
    """One promise and compute.

    Attributes:
        epsilon: of the promise, as typed.
        budget: gradients a round, as typed.
        gap: loss of ULS minus loss of ELS over paired seeds; None where a run has no loss.
        recommended: by the plan.
        group_size: of ULS.
        diversity: L_ELS / L_ULS(G), measured at the starting model.
        needed: of the diversity, for ULS to have the smaller noise (condition 7).
    """

    epsilon: str
    budget: str
    gap: Interval | None
    recommended: str
    group_size: int
    diversity: float
    needed: float

    @property
    def better(self) -> Better:
        """The one with the smaller mean loss; neither where nothing was measured."""
        if self.gap is None:
            return "neither"
        return "uls" if self.gap.mean < 0.0 else "els"

    @property
    def significant(self) -> bool:
        """Whether the interval of the gap leaves zero out; one seed has no interval."""
        if self.gap is None or self.gap.low == self.gap.high:
            return False
        return self.gap.high < 0.0 or self.gap.low > 0.0

    @property
    def agrees(self) -> bool:
        """Whether the plan recommended the one with the smaller mean loss."""
        return self.better == self.recommended


def verdict(weighed: Weighed, uls: CellResult, els: CellResult) -> Verdict:
    """Return the verdict on two lines whose seeds are the same."""
    complete = len(uls.losses) == len(els.losses) and not (uls.num_diverged or els.num_diverged)
    gaps = [a - b for a, b in zip(uls.losses, els.losses, strict=True)] if complete else []
    size = weighed.uls.noise.group_size
    diversity = weighed.norms(1) / weighed.norms(size)
    recommendation = weighed.recommendation
    return Verdict(
        epsilon=uls.settings["epsilon"],
        budget=uls.settings["budget"],
        gap=interval(gaps),
        recommended=recommendation.strategy,
        group_size=size,
        diversity=diversity,
        needed=diversity * recommendation.gradients_per_user / recommendation.norm_ratio,
    )


def sentences(verdicts: Sequence[Verdict]) -> list[str]:
    """Return who won where, how often the plan was right, where it was wrong, and the measures."""
    found = [_cell(one) for one in verdicts]
    right = [one for one in verdicts if one.agrees]
    clear = [one for one in verdicts if one.significant]
    both = [one for one in clear if one.agrees]
    share = len(right) / len(verdicts)
    found.append(
        f"The plan's recommendation is the strategy with the smaller mean loss in {len(right)} of "
        f"{len(verdicts)} cells ({share:.0%}); of the {len(clear)} cells whose 95 % interval "
        f"leaves zero out, in {len(both)}."
    )
    wrong = [one for one in verdicts if not one.agrees]
    if wrong:
        where = "; ".join(f"ε = {one.epsilon}, B = {one.budget}" for one in wrong)
        found.append(f"It was wrong at {where}.")
    needed = max(one.needed for one in verdicts)
    small = ", ".join(sorted({str(one.group_size) for one in verdicts}))
    found.append(
        f"Why: ULS (G = {small}) needs a gradient diversity of {needed:.2f} at most. "
        + (
            "Below 1 it has the smaller noise even if all of a user's gradients were alike: with "
            "few users, hiding the examples that ELS lets a user have costs more than hiding one "
            "user of a cohort."
            if needed < 1.0
            else "Above 1 the gradients of a user have to differ for it to have the smaller noise."
        )
    )
    uls = [one for one in verdicts if one.better == "uls"]
    found.append(
        f"ULS has the smaller mean loss in {len(uls)} of {len(verdicts)} cells. The paper: ULS at "
        "least as good everywhere on Stack Overflow (342,477 users), ELS in front on CC-News "
        "(8,759 users) where the budget or ε is small."
    )
    return found


def _cell(one: Verdict) -> str:
    place = f"ε = {one.epsilon}, B = {one.budget}"
    if one.gap is None:
        return f"{place}: not every run has a loss; see the table."
    half = one.gap.high - one.gap.mean
    return (
        f"{place}: loss of ULS (G = {one.group_size}) minus ELS {one.gap.mean:+.4f} ± {half:.4f}; "
        f"recommended {one.recommended}; gradient diversity {one.diversity:.2f}, ULS needs "
        f"{one.needed:.2f} for the smaller noise."
    )
