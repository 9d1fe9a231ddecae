"""McMahan et al. 2018, §3: a large cohort's loss estimated with few users at the same noise."""

from __future__ import annotations

from pathlib import Path

from experiments.studies.common.series import draw, pick
from experiments.studies.common.trained import Trained, base, carry_through, cell, with_noise
from fedsim.report.grid_result import GridResult, Interval
from fedsim.sweep.cells import Cell

LARGE, SMALL = 256, (16, 64)
MULTIPLIERS = (1.0, 4.0)  # of the large cohort


def run(out: Path, *, quick: bool) -> None:
    """Train large and small cohorts at the same noise, and write the study into `out`."""
    carry_through(STUDY, out, quick=quick)


def grid(quick: bool) -> list[Cell]:
    """Return the cohort that is asked about, and smaller ones with the noise of its average."""
    cells = []
    for multiplier in MULTIPLIERS[:1] if quick else MULTIPLIERS:
        for cohort in (16, 8) if quick else (LARGE, *SMALL):
            largest = 16 if quick else LARGE
            # Noise of the average: z S / M. The same for all cohorts, so z shrinks with M.
            config = with_noise(
                base(f"strategy.cohort_size={cohort}"), multiplier * cohort / largest
            )
            settings = {"noise": f"as z={multiplier:g} at M={largest}", "cohort_size": cohort}
            cells.append(cell("uls", settings, config, quick))
    return cells


def findings(measurement: GridResult) -> list[str]:
    """Return how far each estimate is from the large cohort's loss."""
    sentences = []
    for noise in dict.fromkeys(line.settings["noise"] for line in measurement.lines):
        true, *estimates = pick(measurement.lines, noise=noise)
        for line in estimates:
            if true.loss is None or line.loss is None:
                sentences.append(f"Noise {noise}: no finite loss to compare.")
                continue
            sentences.append(
                f"Noise {noise}: {line.settings['cohort_size']} users estimate "
                f"{line.loss.mean:.4f} for the {true.loss.mean:.4f} of "
                f"{true.settings['cohort_size']}: {line.loss.mean - true.loss.mean:+.4f} "
                f"({_apart(line.loss, true.loss)})."
            )
    sentences.append(
        "The runs with few users are estimates of the loss of the large cohort, computed with a "
        "fraction of its gradients. The ε of the promise is the large cohort's; the small runs "
        "themselves have the larger ε of their own report, or none worth naming."
    )
    return sentences


def _apart(left: Interval, right: Interval) -> str:
    overlap = left.low <= right.high and right.low <= left.high
    return "intervals overlap" if overlap else "intervals are apart"


STUDY = Trained(
    name="small-cohort-estimate",
    title="A large cohort's loss from a small cohort at the same noise",
    explanation=(
        "McMahan et al. 2018, §3: privacy wants large cohorts, which are costly. The noise of the "
        "average, z S / M, decides most of the loss, so a run with fewer users and the same noise "
        "estimates what more users would give. Such a run is no private run of that promise: it "
        "is marked as an estimate.",
    ),
    cells=grid,
    findings=findings,
    draw=lambda measurement: draw(
        measurement,
        x="cohort_size",
        series="noise",
        panels="",
        title="Held-out loss with the noise of the largest cohort",
    ),
)
