"""Chua et al. 2024, §4.1 and §5.1, Tables 2, 4 and 7: which of a user's records to train on."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from experiments.studies.common.paired import against
from experiments.studies.common.series import distinct, draw, means, pick
from experiments.studies.common.trained import Trained, base, carry_through, cell
from fedsim.report.grid_result import GridResult
from fedsim.sweep.cells import Cell, parse_variation

RULES = ("random", "longest", "shortest", "highest-perplexity", "lowest-perplexity")
EPSILONS = (1, 8)
SIZES = {"group-privacy": "batch_size", "uls": "cohort_size"}


def run(out: Path, *, quick: bool) -> None:
    """Train with every selection, and write the study into `out`."""
    carry_through(STUDY, out, quick=quick)


def grid(quick: bool) -> list[Cell]:
    """Return Group Privacy and User-wise DP-SGD with every selection that they take."""
    cells = []
    for strategy, epsilon in product(SIZES, EPSILONS[-1:] if quick else EPSILONS):
        rules = RULES if strategy == "group-privacy" else (*RULES, "random-chunk")
        for rule in rules[:2] if quick else rules:
            config = base(
                f"strategy={{name='{strategy}', rounds=12, {SIZES[strategy]}={8 if quick else 96}, "
                f"group_size=2, selection='{rule}', "
                "clip={kind='flat', l2_clip_norm=0.5, normalise=true}}",
                f"privacy.epsilon={epsilon}",
                "data.cutting=truncate",
            )
            settings = {"epsilon": epsilon, "selection": rule}
            cells.append(cell(strategy, settings, config, quick))
    return cells


def findings(measurement: GridResult) -> list[str]:
    """Return the best selection of each strategy and ε."""
    sentences = []
    for strategy in distinct(measurement.lines, "source"):
        for epsilon in distinct(measurement.lines, "epsilon"):
            lines = pick(measurement.lines, source=strategy, epsilon=epsilon)
            rules = [line.settings["selection"] for line in lines]
            order = sorted(zip(means(lines), rules, strict=True))
            ranked = ", ".join(f"{rule} {loss:.4f}" for loss, rule in order)
            apart = against(lines, "selection", "random")
            sentences.append(f"{strategy}, ε = {epsilon}: {ranked}{apart and '; ' + apart}.")
    sentences.append(
        "The paper finds the longest sequences best for Group Privacy on Enron and no rule best "
        "on BookSum, and random chunks best for User-wise DP-SGD on both."
    )
    return sentences


STUDY = Trained(
    name="selection",
    title="Which of a user's records to train on",
    explanation=(
        "Chua et al. 2024, §§4.1 and 5.1: Group Privacy (Algorithm 1, priced by black-box group "
        "privacy) and User-wise DP-SGD (Algorithm 2, here `uls`) with two records a user, chosen "
        "by each rule. Perplexity is that of the starting model. Both draw about 96 units a round: "
        "examples in the one, users in the other, whose two records are averaged.",
    ),
    cells=grid,
    findings=findings,
    draw=lambda measurement: draw(
        measurement,
        x="selection",
        series="epsilon",
        panels="source",
        title="Held-out loss by selection",
    ),
    keys=[parse_variation("server.learning_rate=0.15,0.5", "--tune")],
    seeds=2,
)
