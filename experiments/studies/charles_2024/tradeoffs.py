"""Charles et al. 2024, §4 and App. J.1, Figures 3, 4, 14 and 15: ULS and ELS on real text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

from matplotlib.figure import Figure

from experiments.studies.common.series import distinct, draw_rows, pick
from experiments.studies.common.trained import Trained, base, carry_through, cell
from experiments.studies.common.verdicts import Verdict, sentences, verdict
from fedsim.materials import load_materials
from fedsim.planner.weighing import Weighed, weigh
from fedsim.report.folder import write_grid
from fedsim.report.grid_result import GridResult
from fedsim.sweep.cells import Cell, parse_variation

EPSILONS, BUDGETS = (1, 4, 16, 64), (32, 128, 512)
QUICK_EPSILONS, QUICK_BUDGETS = (4,), (32,)


def run(out: Path, *, quick: bool) -> None:
    """Train both strategies everywhere, and write the study and its report into `out`."""
    write_grid(carry_through(STUDY, out, quick=quick), out)


@cache
def planned(epsilon: int, budget: int) -> Weighed:
    """Return what `fedsim plan` makes of the base config at this promise and compute."""
    config = base(f"privacy.epsilon={epsilon}", "strategy.cohort_size=32")
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    return weigh(config, materials, budget=budget)


def grid(quick: bool) -> list[Cell]:
    """Return what was planned for both strategies, at every budget and ε."""
    values = (QUICK_BUDGETS, QUICK_EPSILONS) if quick else (BUDGETS, EPSILONS)
    cells = []
    for budget, epsilon in product(*values):
        for one in planned(epsilon, budget).candidates:
            name = one.config.strategy.name
            settings = {"epsilon": epsilon, "budget": budget}
            cells.append(cell(name, settings, one.config, quick))
    return cells


def verdicts(measurement: GridResult) -> list[Verdict]:
    """Return, cell by cell, which strategy was better and which was recommended."""
    found = []
    for budget, epsilon in product(
        distinct(measurement.lines, "budget"), distinct(measurement.lines, "epsilon")
    ):
        uls, els = (
            pick(measurement.lines, budget=budget, epsilon=epsilon, source=name)[0]
            for name in ("uls", "els")
        )
        found.append(verdict(planned(int(epsilon), int(budget)), uls, els))
    return found


def findings(measurement: GridResult) -> Sequence[str]:
    """Return who won where, whether the plan knew, and what the gradients say about it."""
    return sentences(verdicts(measurement))


def picture(measurement: GridResult) -> Figure:
    """Draw loss against ε for each budget, and against the budget for each ε."""
    return draw_rows(
        measurement,
        series="source",
        rows=(("epsilon", "budget"), ("budget", "epsilon")),
        title="User-level and example-level sampling at equal promise and compute",
    )


STUDY = Trained(
    name="tradeoffs",
    title="ULS and ELS on real text, at equal promise and equal compute",
    explanation=(
        "Charles et al. 2024, §4 and App. J.1: speakers of Shakespeare's plays as users, token "
        "embeddings of `tiny-gpt` trained by SGD for 12 rounds. Group sizes and cohorts are those "
        "of `fedsim plan`: the median user size for ELS, Estimate-and-Double for ULS. A budget is "
        "the expected gradients a round. Learning rate and clip norm are tuned for every line.",
        "The paper has 8,759 and 342,477 users, 350 M parameters and 2,000 to 10,000 rounds; here "
        "are 898 users, so its large noise is the rule.",
    ),
    cells=grid,
    findings=findings,
    draw=picture,
    keys=[
        parse_variation("server.learning_rate=0.1,0.4,1.6", "--tune"),
        parse_variation("strategy.clip.l2_clip_norm=0.25,1.0", "--tune"),
    ],
    quick_keys=[parse_variation("server.learning_rate=0.5", "--tune")],
)
