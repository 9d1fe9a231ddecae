"""Chua et al. 2024, §§4.2, 5.2 and 6, Tables 3, 5 and 6: how many records a user contributes."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from experiments.studies.common.series import distinct, draw, means, pick
from experiments.studies.common.trained import Trained, base, carry_through, cell
from fedsim.report.grid_result import GridResult
from fedsim.sweep.cells import Cell, parse_variation

EPSILONS, RECORDS = (1, 8), (1, 2, 4, 8)
SIZES = {"group-privacy": "batch_size", "els": "batch_size", "uls": "cohort_size"}


def run(out: Path, *, quick: bool) -> None:
    """Train with every number of records, and write the study into `out`."""
    carry_through(STUDY, out, quick=quick)


def grid(quick: bool) -> list[Cell]:
    """Return three strategies with 1 to 8 records a user."""
    cells = []
    for strategy, epsilon, records in product(
        SIZES, EPSILONS[-1:] if quick else EPSILONS, RECORDS[:2] if quick else RECORDS
    ):
        config = base(
            f"strategy={{name='{strategy}', rounds=12, {SIZES[strategy]}={8 if quick else 64}, "
            f"group_size={records}, clip={{kind='flat', l2_clip_norm=0.5, normalise=true}}}}",
            f"privacy.epsilon={epsilon}",
        )
        settings = {"epsilon": epsilon, "records": records}
        cells.append(cell(strategy, settings, config, quick))
    return cells


def findings(measurement: GridResult) -> list[str]:
    """Return the best number of records, and which strategy is in front."""
    sentences = []
    for epsilon in distinct(measurement.lines, "epsilon"):
        best = {}
        for strategy in distinct(measurement.lines, "source"):
            lines = pick(measurement.lines, source=strategy, epsilon=epsilon)
            losses = dict(
                zip([line.settings["records"] for line in lines], means(lines), strict=True)
            )
            number = min(losses, key=lambda records: losses[records])
            best[strategy] = losses[number]
            sentences.append(
                f"{strategy}, ε = {epsilon}: best with k = {number}, {best[strategy]:.4f}."
            )
        first = min(best, key=lambda strategy: best[strategy])
        sentences.append(f"ε = {epsilon}: {first} is in front.")
    sentences.append(
        "The paper finds small k better for Group Privacy at small ε, large k always better for "
        "User-wise DP-SGD, and User-wise DP-SGD in front, the more so at small ε. It has no row "
        "for the mixture accountant (`els`), which came later."
    )
    return sentences


STUDY = Trained(
    name="records-per-user",
    title="How many records a user contributes",
    explanation=(
        "Chua et al. 2024, Tables 3, 5 and 6: k records a user in Group Privacy (Algorithm 1) and "
        "User-wise DP-SGD (Algorithm 2, here `uls`), with `els`, which is Algorithm 1 priced by "
        "the mixture-of-Gaussians accountant, between them. A round draws 64 units on average: "
        "examples, or users whose k records are averaged, so `uls` computes up to k times more.",
    ),
    cells=grid,
    findings=findings,
    draw=lambda measurement: draw(
        measurement,
        x="records",
        series="epsilon",
        panels="source",
        title="Held-out loss against the records of a user",
    ),
    keys=[parse_variation("server.learning_rate=0.15,0.5", "--tune")],
    seeds=2,
)
