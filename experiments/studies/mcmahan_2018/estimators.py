"""McMahan et al. 2018, §3 and Figure 5: samplers and estimators of a round's average.

The study compares three averages of a round: over exactly M users; over a Poisson cohort divided by
its expected weight; and over a Poisson cohort divided by its own weight, but at least by half of
the expected weight (Lemma 1: the sensitivity is twice the clip over that minimum weight).

`fixed-size` and `Poisson` divide by the expected weight; `Poisson, clipped` by max(q W_min, drawn
weight).

The paper finds that the estimators have equal accuracy without noise. With noise the fixed
denominator is better: the clipped one has twice the sensitivity.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, base, cell
from fedsim.planner.variants import with_noise
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


def grid(quick: bool) -> Iterator[Cell]:
    """Yield every way to average, without noise and with the same noise multiplier."""
    for way, overrides in WAYS.items():
        for noise in NOISE[:1] if quick else NOISE:
            cohort = f"strategy.cohort_size={8 if quick else COHORT}"
            config = with_noise(base(cohort, *overrides), noise)
            settings = {"noise_multiplier": f"{noise:g}", "average": way}
            yield cell("uls", settings, config, quick)


run = Trained(
    name="estimators",
    title="Fixed and clipped denominators, fixed and random cohorts",
    explanation=__doc__,
    cells=grid,
    draw=picture("average", "noise_multiplier", "", "Held-out loss by sampler and denominator"),
)
