"""Charles et al. 2024, §4 and App. J.1, Figures 3, 4, 14 and 15: ULS and ELS on real text.

Users are speakers of Shakespeare's plays, or users of a file (`--data`). SGD trains the token
embeddings of `tiny-gpt` for 12 rounds. Group sizes and cohorts come from `fedsim plan`: the median
user size for ELS, Estimate-and-Double for ULS. A budget is the expected number of gradients per
round. The learning rate is tuned for every line. The clip norm is 0.25; all lines chose it when it
was tuned, too. With `--model`, Adam trains adapters of that model for 8 rounds instead, with the
planned clip norm.

The paper has 8,759 and 342,477 users, 350 M parameters and 2,000 to 10,000 rounds. The plays have
only 898 users, so the noise is large. In the paper, ULS is at least as good in all settings on
Stack Overflow, and ELS is better on CC-News if the budget or ε is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import product
from statistics import median
from typing import NamedTuple

from matplotlib.figure import Figure

from fedsim.config import with_settings
from fedsim.experiments.studies.common.options import ON_A_FILE, OnText, Options
from fedsim.experiments.studies.common.output import Table
from fedsim.experiments.studies.common.series import distinct, draw_rows, pick
from fedsim.experiments.studies.common.trained import Trained, cell
from fedsim.materials import load_materials
from fedsim.planner.compare_strategies import StrategyComparison, compare_strategies
from fedsim.report.grid_result import CellResult, GridResult
from fedsim.report.intervals import difference
from fedsim.report.wording import NOTHING
from fedsim.sweep.cells import Cell, parse_variation
from fedsim.utils.terminal import status_when_slow

EPSILONS, BUDGETS = (1, 4, 16, 64), (32, 128, 512)
PRETRAINED_EPSILONS, PRETRAINED_BUDGETS = (2, 16), (16, 64)  # few: each gradient takes long
QUICK_EPSILONS, QUICK_BUDGETS = (4,), (32,)
RATES, FILE_RATES, PRETRAINED_RATES = "0.1,0.4,1.6", "0.1,0.4,1.6,6.4", "0.01,0.03,0.1"
CLIP = "strategy.clip.l2_clip_norm=0.25"


@cache
def planned(epsilon: float, budget: float, options: Options) -> StrategyComparison:
    """Return the plans of `fedsim plan` for the base config at this ε and budget."""
    config = options.base(f"privacy.epsilon={epsilon}", "strategy.cohort_size=32")
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    with status_when_slow(f"planning {budget:g} gradients a round at epsilon {epsilon:g}"):
        return compare_strategies(config, materials, budget=budget)


def grid(quick: bool, options: Options) -> Iterator[Cell]:
    """Yield the planned config of both strategies, at every budget and ε."""
    whole = (
        (BUDGETS, EPSILONS) if options.model is None else (PRETRAINED_BUDGETS, PRETRAINED_EPSILONS)
    )
    budgets, epsilons = (QUICK_BUDGETS, QUICK_EPSILONS) if quick else whole
    for budget, epsilon in product(options.budgets or budgets, options.epsilons or epsilons):
        plans = planned(epsilon, budget, options)
        for candidate in (plans.uls, plans.els):
            name = candidate.config.strategy.name
            settings = {"epsilon": f"{epsilon:g}", "budget": f"{budget:g}"}
            clip = [] if options.model else [CLIP]
            yield cell(name, settings, with_settings(candidate.config, clip), quick)


class Recommendation(NamedTuple):
    """The recommendation of `fedsim plan` at one ε and budget, and the better strategy.

    Attributes:
        epsilon: ε of the promise, as typed.
        budget: gradients per round, as typed.
        recommended: recommended strategy.
        better: strategy with the smaller mean loss; "" without a common seed.
        gap: mean over seeds of the loss of ULS minus that of ELS; None without a common seed.
        gap_low: lower end of its paired 95 % interval over seeds; equal to `gap` for one seed.
        gap_high: upper end of that interval.
        unpaired: half the width of the unpaired interval; None for one seed.
        group_size: group size of ULS.
        diversity: L_ELS / L_ULS(G), measured at the starting model.
        needed: minimum diversity at which ULS has the smaller noise (condition 7).
    """

    epsilon: str
    budget: str
    recommended: str
    better: str
    gap: float | None
    gap_low: float | None
    gap_high: float | None
    unpaired: float | None
    group_size: int
    diversity: float
    needed: float

    @property
    def clear(self) -> bool:
        """Whether the paired interval excludes zero."""
        if self.unpaired is None or self.gap_low is None or self.gap_high is None:
            return False
        return not self.gap_low <= 0.0 <= self.gap_high

    @property
    def width_ratio(self) -> float | None:
        """Width of the paired interval over that of the unpaired one; None for one seed."""
        if not self.unpaired or self.gap_low is None or self.gap_high is None:
            return None
        return (self.gap_high - self.gap_low) / (2.0 * self.unpaired)


def compare(comparison: StrategyComparison, uls: CellResult, els: CellResult) -> Recommendation:
    """Return the recommendation and the gap of both lines over their common seeds."""
    pair = difference(uls.name, els.name, uls.counted_losses, els.counted_losses)
    gap = None if pair is None else pair.loss
    size = comparison.uls.noise.group_size
    diversity = comparison.norms(1) / comparison.norms(size)
    advice = comparison.recommendation
    return Recommendation(
        epsilon=uls.settings["epsilon"],
        budget=uls.settings["budget"],
        recommended=advice.strategy,
        better="" if gap is None else "uls" if gap.mean < 0.0 else "els",
        gap=None if gap is None else gap.mean,
        gap_low=None if gap is None else gap.low,
        gap_high=None if gap is None else gap.high,
        unpaired=None if pair is None or len(pair.seeds) < 2 else pair.unpaired,
        group_size=size,
        diversity=diversity,
        needed=diversity * advice.gradients_per_user / advice.norm_ratio,
    )


def recommendations(measurement: GridResult, options: Options) -> list[Recommendation]:
    """Return the recommendation and the gap for each budget and ε."""
    rows = []
    for budget, epsilon in product(
        distinct(measurement.lines, "budget"), distinct(measurement.lines, "epsilon")
    ):
        uls, els = (
            pick(measurement.lines, budget=budget, epsilon=epsilon, source=name)[0]
            for name in ("uls", "els")
        )
        rows.append(compare(planned(float(epsilon), float(budget), options), uls, els))
    return rows


def counts(rows: Sequence[Recommendation]) -> list[str]:
    """Return counts of better strategies and right plans, and the effect of pairing by seed."""
    right = sum(row.better == row.recommended for row in rows)
    uls = sum(row.better == "uls" for row in rows)
    clear = [row for row in rows if row.clear]
    smaller = [sum(row.better == name for row in clear) for name in ("uls", "els")]
    sentences = [
        f"The plan's recommendation has the smaller mean loss in {right} of {len(rows)} cells; "
        f"`recommendations.csv` has each. ULS has the smaller mean loss in {uls}.",
        f"The paired interval excludes zero in {len(clear)} cells. ULS has the smaller loss in "
        f"{smaller[0]} of them, ELS in {smaller[1]}.",
    ]
    if ratios := [row.width_ratio for row in rows if row.width_ratio is not None]:
        sentences.append(
            f"The paired interval of a cell is {median(ratios):.2f} times as wide as the unpaired "
            f"one (median of {len(ratios)} cells; {min(ratios):.2f} to {max(ratios):.2f})."
        )
    return sentences


def gaps(rows: Sequence[Recommendation]) -> Table:
    """Return the paired difference of the two strategies at each ε and budget."""
    heads = ("budget", "ε", "G", "ULS − ELS, paired", "unpaired", "ratio", "recommended")
    return Table(heads, [_gap_row(row) for row in rows])


def _gap_row(row: Recommendation) -> list[str]:
    if row.gap is None or row.gap_high is None:
        gap = NOTHING
    else:
        half = f" ± {row.gap_high - row.gap:.4f}" if row.unpaired is not None else ""
        gap = f"{'* ' if row.clear else ''}{row.gap:+.4f}{half}".replace("-", "−")
    unpaired = NOTHING if row.unpaired is None else f"± {row.unpaired:.4f}"
    ratio = NOTHING if row.width_ratio is None else f"{row.width_ratio:.2f}"
    size = f"{row.group_size}"
    return [row.budget, row.epsilon, size, gap, unpaired, ratio, row.recommended]


def picture(measurement: GridResult) -> Figure:
    """Draw loss against ε for each budget, and against the budget for each ε."""
    return draw_rows(
        measurement,
        series="source",
        rows=(("epsilon", "budget"), ("budget", "epsilon")),
        title="ULS and ELS at equal promise and compute",
    )


def study(options: Options) -> Trained:
    """Return the study of the small network, or of adapters of a pre-trained model."""
    rates = RATES if options.data is None else FILE_RATES
    if options.model is not None:
        rates = PRETRAINED_RATES

    def rows(measurement: GridResult) -> list[Recommendation]:
        return recommendations(measurement, options)

    return Trained(
        name="tradeoffs",
        title="ULS and ELS on real text, at equal promise and equal compute",
        explanation=__doc__,
        cells=partial(grid, options=options),
        notes=lambda measurement: counts(rows(measurement)),
        more=lambda measurement: {
            "recommendations.csv": [row._asdict() for row in rows(measurement)]
        },
        further=lambda measurement: {"ULS minus ELS": gaps(rows(measurement))},
        draw=picture,
        keys=[parse_variation(f"server.learning_rate={rates}", "--tune")],
        quick_keys=[parse_variation("server.learning_rate=0.5", "--tune")],
        compares=True,
    )


run = OnText(study, takes=("model", "epsilons", "budgets", *ON_A_FILE))
