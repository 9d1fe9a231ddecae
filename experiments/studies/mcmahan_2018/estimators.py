"""McMahan et al. 2018, §3 and Figure 5: samplers and estimators of a round's average."""

from __future__ import annotations

from pathlib import Path

from experiments.studies.common.series import draw, means
from experiments.studies.common.trained import Trained, base, carry_through, cell, with_noise
from fedsim.report.grid_result import GridResult
from fedsim.sweep.cells import Cell

COHORT = 64
WAYS = {
    "fixed-size": ("strategy.sampling.kind=fixed-size",),
    "Poisson": (),
    "Poisson, clipped": (
        "strategy.estimator.kind=clipped",
        f"strategy.estimator.min_weight={0.5 * 898:g}",
    ),
}
NOISE = (0.0, 0.5)


def run(out: Path, *, quick: bool) -> None:
    """Train with every estimator, and write the study into `out`."""
    carry_through(STUDY, out, quick=quick)


def grid(quick: bool) -> list[Cell]:
    """Return every way to average, without noise and with the same noise multiplier."""
    cells = []
    for way, overrides in WAYS.items():
        for noise in NOISE[:1] if quick else NOISE:
            cohort = f"strategy.cohort_size={8 if quick else COHORT}"
            config = with_noise(base(cohort, *overrides), noise)
            settings = {"noise_multiplier": f"{noise:g}", "average": way}
            cells.append(cell("uls", settings, config, quick))
    return cells


def findings(measurement: GridResult) -> list[str]:
    """Return how far the averages are apart, at each noise multiplier."""
    sentences = []
    for noise in dict.fromkeys(line.settings["noise_multiplier"] for line in measurement.lines):
        lines = [x for x in measurement.lines if x.settings["noise_multiplier"] == noise]
        losses = dict(zip([x.settings["average"] for x in lines], means(lines), strict=True))
        best = min(losses, key=lambda name: losses[name])
        spread = max(losses.values()) - min(losses.values())
        widest = max((x.loss.high - x.loss.low) / 2 for x in lines if x.loss is not None)
        sentences.append(
            f"Noise multiplier {noise}: the averages end within {spread:.4f} nats of each other, "
            f"best is {best}; the widest interval over seeds is ± {widest:.4f}."
        )
    sentences.append(
        "The paper finds the estimators alike in accuracy without noise, and the fixed "
        "denominator in front where noise counts: the clipped one pays twice the sensitivity."
    )
    return sentences


STUDY = Trained(
    name="estimators",
    title="Fixed and clipped denominators, fixed and random cohorts",
    explanation=(
        "McMahan et al. 2018, §2, §3 and App. C (Figure 5): the round's average over exactly M "
        "users, over a Poisson cohort divided by its expected weight, and divided by its own "
        "weight from half the expected one up (Lemma 1: twice the clip over that least weight).",
        "`fixed-size` and `Poisson` divide by the expected weight; `Poisson, clipped` by "
        "max(q W_min, drawn weight).",
    ),
    cells=grid,
    findings=findings,
    draw=lambda measurement: draw(
        measurement,
        x="average",
        series="noise_multiplier",
        panels="",
        title="Held-out loss by sampler and denominator",
    ),
)
