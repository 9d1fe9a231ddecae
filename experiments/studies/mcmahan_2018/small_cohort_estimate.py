"""McMahan et al. 2018, §3: estimate the loss of a large cohort with few users at the same noise.

Privacy needs large cohorts, which are costly. The loss depends mostly on the noise of the average,
z S / M. So a run with fewer users and the same noise estimates the loss of a large cohort. Such a
run does not have the large cohort's promise: it is marked as an estimate.

The runs with few users estimate the loss of the large cohort with a fraction of its gradients. The
ε of the promise is the large cohort's. The small runs have a larger ε, stated in their own reports.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, base, cell
from fedsim.planner.variants import with_noise
from fedsim.sweep.cells import Cell

LARGE, SMALL = 256, (16, 64)
MULTIPLIERS = (1.0, 4.0)  # noise multipliers of the large cohort


def grid(quick: bool) -> Iterator[Cell]:
    """Yield the large cohort, and smaller ones with the noise of its average."""
    for multiplier in MULTIPLIERS[:1] if quick else MULTIPLIERS:
        for cohort in (16, 8) if quick else (LARGE, *SMALL):
            largest = 16 if quick else LARGE
            # The noise of the average, z S / M, is the same for all cohorts, so z shrinks with M.
            config = with_noise(
                base(f"strategy.cohort_size={cohort}"), multiplier * cohort / largest
            )
            settings = {"noise": f"as z={multiplier:g} at M={largest}", "cohort_size": cohort}
            yield cell("uls", settings, config, quick)


run = Trained(
    name="small-cohort-estimate",
    title="A large cohort's loss from a small cohort at the same noise",
    explanation=__doc__,
    cells=grid,
    draw=picture("cohort_size", "noise", "", "Held-out loss with the noise of the largest cohort"),
)
