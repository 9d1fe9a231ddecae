"""Chua et al. 2024, App. C, Table 8: full fine-tuning against adapters of several ranks."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from experiments.studies.common.paired import against
from experiments.studies.common.series import distinct, draw, means, pick
from experiments.studies.common.trained import Trained, base, carry_through, cell
from fedsim.report.grid_result import GridResult
from fedsim.sweep.cells import Cell, parse_variation

EPSILONS = (1, 8)
WAYS = {
    "full": ("model.trainable=all",),
    **{f"rank {rank}": ("model.trainable=all", f"model.lora_rank={rank}") for rank in (4, 16, 32)},
}


def run(out: Path, *, quick: bool) -> None:
    """Train with every rank, and write the study into `out`."""
    carry_through(STUDY, out, quick=quick)


def grid(quick: bool) -> list[Cell]:
    """Return ULS with all parameters, and with adapters of each rank."""
    cells = []
    for epsilon, way in product(EPSILONS[-1:] if quick else EPSILONS, WAYS):
        if quick and way in ("rank 16", "rank 32"):
            continue
        cohort = f"strategy.cohort_size={8 if quick else 64}"
        config = base(cohort, f"privacy.epsilon={epsilon}", *WAYS[way])
        settings = {"epsilon": epsilon, "parameters": way}
        cells.append(cell("uls", settings, config, quick))
    return cells


def findings(measurement: GridResult) -> list[str]:
    """Return the order of the ways at each ε."""
    sentences = []
    for epsilon in distinct(measurement.lines, "epsilon"):
        lines = pick(measurement.lines, epsilon=epsilon)
        names = [line.settings["parameters"] for line in lines]
        ranked = ", ".join(
            f"{name} {loss:.4f}" for loss, name in sorted(zip(means(lines), names, strict=True))
        )
        apart = against(lines, "parameters", "full")
        sentences.append(f"ε = {epsilon}: {ranked}{apart and '; ' + apart}.")
    sentences.append(
        "The paper finds adapters and full fine-tuning close without privacy, with the rank of "
        "little influence (GPT-2, Enron and BookSum)."
    )
    return sentences


STUDY = Trained(
    name="lora-rank",
    title="Full fine-tuning against adapters",
    explanation=(
        "Chua et al. 2024, App. C (Table 8). Fewer parameters mean less noise in all, and less to "
        "train with. `tiny-gpt` has 1 M parameters, so a rank is a larger share of it than of "
        "GPT-2.",
    ),
    cells=grid,
    findings=findings,
    draw=lambda measurement: draw(
        measurement,
        x="parameters",
        series="epsilon",
        panels="",
        title="Held-out loss: all parameters, and adapters by rank",
    ),
    keys=[parse_variation("server.learning_rate=0.1,0.5,2.0", "--tune")],
    seeds=2,
)
