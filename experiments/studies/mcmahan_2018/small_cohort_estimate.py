"""McMahan et al. 2018, §3: loss of a large cohort, estimated with few users at the same noise.

Privacy wants large cohorts, which are costly. The noise of the average, z S / M, decides most of
the loss, so a run with fewer users and the same noise estimates what more users would give. Such a
run is no private run of that promise: it is marked as an estimate.

The runs with few users are estimates of the loss of the large cohort, computed with a fraction of
its gradients. The ε of the promise is the large cohort's; the small runs themselves have the
larger ε of their own report, or none worth naming.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, base, cell
from fedsim.planner.variants import with_noise
from fedsim.sweep.cells import Cell

LARGE, SMALL = 256, (16, 64)
MULTIPLIERS = (1.0, 4.0)  # of the large cohort


def grid(quick: bool) -> Iterator[Cell]:
    """Yield the large cohort, and smaller ones with the noise of its average."""
    for multiplier in MULTIPLIERS[:1] if quick else MULTIPLIERS:
        for cohort in (16, 8) if quick else (LARGE, *SMALL):
            largest = 16 if quick else LARGE
            # Noise of the average: z S / M. The same for all cohorts, so z shrinks with M.
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
