"""McMahan et al. 2018, §3, Figures 2, 3 and 8: clipping, noise, and both at a fixed z.

Noise multiplier 0 is clipping alone (Figure 2). Along a line of fixed noise multiplier z the
promise is the same, and noise grows with the clip (Figures 3 and 8). Per-layer clips are equal: S_j
= S/√m.

The paper finds that a clip below the updates' norms slows training only a little, and that flat and
per-layer clipping are close. At fixed z, a smaller clip with its smaller noise is better late in
training.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, base, cell
from fedsim.planner.variants import with_noise
from fedsim.sweep.cells import Cell

# Norms of users' updates are about 1.3 at the start: the smallest clip affects almost all.
CLIPS, MULTIPLIERS = (0.05, 0.2, 0.8, 3.2), (0.0, 0.3, 1.2)
KINDS = ("flat", "per-layer")
RATE = 0.6  # learning rate for unclipped updates


def grid(quick: bool) -> Iterator[Cell]:
    """Yield clips without noise, and clips at two noise multipliers, flat and per layer."""
    clips = CLIPS[1:3] if quick else CLIPS
    multipliers = MULTIPLIERS[:1] if quick else MULTIPLIERS
    for kind in KINDS:
        for multiplier in multipliers:
            for norm in clips:
                config = base(
                    f"strategy.clip={{kind='{kind}', l2_clip_norm={norm}}}",
                    f"strategy.cohort_size={8 if quick else 64}",
                    "model.trainable='wte|ln_f|h.3'",
                    f"server.learning_rate={RATE}",
                )
                settings = {"kind": kind, "noise_multiplier": multiplier, "clip": norm}
                yield cell("uls", settings, with_noise(config, multiplier), quick)


run = Trained(
    name="clip-noise",
    title="What clipping costs, what noise costs, and both at a fixed noise multiplier",
    explanation=__doc__,
    cells=grid,
    draw=picture("clip", "noise_multiplier", "kind", "Held-out loss against the clip"),
)
