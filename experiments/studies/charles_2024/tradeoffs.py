"""Charles et al. 2024, §4 and App. J.1, Figures 3, 4, 14 and 15: ULS and ELS on real text.

Speakers of Shakespeare's plays as users, token embeddings of `tiny-gpt` trained by SGD for 12
rounds. Group sizes and cohorts are those of `fedsim plan`: the median user size for ELS,
Estimate-and-Double for ULS. A budget is the expected gradients a round. Learning rate and clip
norm are tuned for every line. With `--model` adapters of that model are trained instead, by Adam
for 8 rounds, the clip norm is the planned one, and the learning rate alone is tuned.

The paper has 8,759 and 342,477 users, 350 M parameters and 2,000 to 10,000 rounds; here are 898
users, so its large noise is the rule. There ULS is at least as good everywhere on Stack Overflow,
and ELS in front on CC-News where the budget or ε is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from fedsim.experiments.studies.common.series import distinct, draw_rows, pick
from fedsim.experiments.studies.common.trained import Trained, base, cell
from fedsim.materials import load_materials
from fedsim.planner.compare_strategies import StrategyComparison, compare_strategies
from fedsim.report.comparison_folder import write_grid
from fedsim.report.grid_result import CellResult, GridResult
from fedsim.report.intervals import difference
from fedsim.sweep.cells import Cell, parse_variation
from fedsim.utils.terminal import status_when_slow

EPSILONS, BUDGETS = (1, 4, 16, 64), (32, 128, 512)
PRETRAINED_EPSILONS, PRETRAINED_BUDGETS = (2, 16), (16, 64)  # each gradient takes long
QUICK_EPSILONS, QUICK_BUDGETS = (4,), (32,)


@cache
def planned(epsilon: int, budget: int, model: str | None = None) -> StrategyComparison:
    """Return the plans that `fedsim plan` compares for the base config at this ε and budget."""
    config = base(f"privacy.epsilon={epsilon}", "strategy.cohort_size=32", model=model)
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    with status_when_slow(f"planning {budget} gradients a round at epsilon {epsilon}"):
        return compare_strategies(config, materials, budget=budget)


def grid(quick: bool, model: str | None = None) -> Iterator[Cell]:
    """Yield the planned config of both strategies, at every budget and ε."""
    whole = (BUDGETS, EPSILONS) if model is None else (PRETRAINED_BUDGETS, PRETRAINED_EPSILONS)
    values = (QUICK_BUDGETS, QUICK_EPSILONS) if quick else whole
    for budget, epsilon in product(*values):
        plans = planned(epsilon, budget, model)
        for candidate in (plans.uls, plans.els):
            name = candidate.config.strategy.name
            settings = {"epsilon": epsilon, "budget": budget}
            yield cell(name, settings, candidate.config, quick)


class Recommendation(NamedTuple):
    """The strategy that `fedsim plan` recommended at one ε and budget, and the better one.

    Attributes:
        epsilon: of the promise, as typed.
        budget: gradients a round, as typed.
        recommended: strategy.
        better: the strategy with the smaller mean loss; "" without a common seed.
        gap: loss of ULS minus loss of ELS, the mean over seeds; None without a common one.
        gap_low: of its 95 % interval over seeds, which is a point for one seed.
        gap_high: likewise.
        group_size: of ULS.
        diversity: L_ELS / L_ULS(G), measured at the starting model.
        needed: of the diversity, for ULS to have the smaller noise (condition 7).
    """

    epsilon: str
    budget: str
    recommended: str
    better: str
    gap: float | None
    gap_low: float | None
    gap_high: float | None
    group_size: int
    diversity: float
    needed: float


def compare(comparison: StrategyComparison, uls: CellResult, els: CellResult) -> Recommendation:
    """Return the recommendation beside two lines; their gap is over common seeds."""
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
        group_size=size,
        diversity=diversity,
        needed=diversity * advice.gradients_per_user / advice.norm_ratio,
    )


def recommendations(measurement: GridResult, model: str | None = None) -> list[Recommendation]:
    """Return the recommendation of each budget and ε beside its runs."""
    rows = []
    for budget, epsilon in product(
        distinct(measurement.lines, "budget"), distinct(measurement.lines, "epsilon")
    ):
        uls, els = (
            pick(measurement.lines, budget=budget, epsilon=epsilon, source=name)[0]
            for name in ("uls", "els")
        )
        rows.append(compare(planned(int(epsilon), int(budget), model), uls, els))
    return rows


def counts(rows: Sequence[Recommendation]) -> list[str]:
    """Return the number of right recommendations, and of cells where ULS is better."""
    right = sum(row.better == row.recommended for row in rows)
    uls = sum(row.better == "uls" for row in rows)
    return [
        f"The plan's recommendation has the smaller mean loss in {right} of {len(rows)} cells; "
        f"`recommendations.csv` has each. ULS has it in {uls}."
    ]


def picture(measurement: GridResult) -> Figure:
    """Draw loss against ε for each budget, and against the budget for each ε."""
    return draw_rows(
        measurement,
        series="source",
        rows=(("epsilon", "budget"), ("budget", "epsilon")),
        title="ULS and ELS at equal promise and compute",
    )


def study(model: str | None = None) -> Trained:
    """Return the study of the small network, or of the adapters of a pre-trained model."""
    title, options = "ULS and ELS on real text, at equal promise and equal compute", ""
    rates = "server.learning_rate=0.1,0.4,1.6"
    keys = [parse_variation("strategy.clip.l2_clip_norm=0.25,1.0", "--tune")]
    if model is not None:
        name = Path(model).name  # the page says no path of the machine
        title, options = f"{title}: adapters of {name}", f" --model {name}"
        rates, keys = "server.learning_rate=0.01,0.03,0.1", []
    return Trained(
        name="tradeoffs",
        title=title,
        explanation=__doc__,
        cells=partial(grid, model=model),
        notes=lambda measurement: counts(recommendations(measurement, model)),
        more=lambda measurement: {
            "recommendations.csv": [row._asdict() for row in recommendations(measurement, model)]
        },
        draw=picture,
        keys=[parse_variation(rates, "--tune"), *keys],
        quick_keys=[parse_variation("server.learning_rate=0.5", "--tune")],
        options=options,
    )


def run(out: Path, *, quick: bool, model: str | None = None) -> None:
    """Train both strategies everywhere, and write the study and its report into `out`."""
    study(model)(out, quick=quick)
    text = (out / "measurement.json").read_text(encoding="utf-8")
    write_grid(GridResult.model_validate_json(text), out)
