"""McMahan et al. 2018, §3, Figures 2, 3 and 8: clipping, noise, and both at a fixed z."""

from __future__ import annotations

from pathlib import Path

from experiments.studies.common.series import distinct, draw, means, pick
from experiments.studies.common.trained import Trained, base, carry_through, cell, with_noise
from fedsim.report.grid_result import GridResult
from fedsim.sweep.cells import Cell

# Norms of the updates of a user are about 1.3 at the start: the least clip cuts nearly all.
CLIPS, MULTIPLIERS, FIXED_CLIP = (0.05, 0.2, 0.8, 3.2), (0.0, 0.3, 1.2), 0.8
KINDS = ("flat", "per-layer")
RATE = 0.6  # of a step whose update was not clipped


def run(out: Path, *, quick: bool) -> None:
    """Train with every clip and noise, and write the study into `out`."""
    carry_through(STUDY, out, quick=quick)


def grid(quick: bool) -> list[Cell]:
    """Return clips without noise, and clips at two noise multipliers, flat and per layer."""
    clips = CLIPS[1:3] if quick else CLIPS
    multipliers = MULTIPLIERS[:1] if quick else MULTIPLIERS
    cells = []
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
                cells.append(cell("uls", settings, with_noise(config, multiplier), quick))
    return cells


def findings(measurement: GridResult) -> list[str]:
    """Return the best clip at each noise multiplier, and what noise costs at one clip."""
    sentences = []
    lines = measurement.lines
    for kind in distinct(lines, "kind"):
        for multiplier in distinct(lines, "noise_multiplier"):
            row = pick(lines, kind=kind, noise_multiplier=multiplier)
            losses = dict(zip([line.settings["clip"] for line in row], means(row), strict=True))
            best = min(losses, key=lambda norm: losses[norm])
            sentences.append(
                f"{kind}, noise multiplier {multiplier}: best clip {best} ({losses[best]:.4f}); "
                f"the losses span {max(losses.values()) - min(losses.values()):.4f}."
            )
    sentences.append(
        "The paper finds that a clip below the updates' norms slows training little, that flat "
        "and per-layer clipping are close, and that at fixed z a smaller clip with its smaller "
        "noise wins late in training."
    )
    return sentences


STUDY = Trained(
    name="clip-noise",
    title="What clipping costs, what noise costs, and both at a fixed noise multiplier",
    explanation=(
        "McMahan et al. 2018, §3 and App. C. Noise multiplier 0 is clipping alone (Figure 2); "
        "along a line of fixed noise multiplier z the promise is the same, and noise grows with "
        "the clip (Figures 3 and 8). Per layer, the clip is shared evenly: S_j = S/√m.",
    ),
    cells=grid,
    findings=findings,
    draw=lambda measurement: draw(
        measurement,
        x="clip",
        series="noise_multiplier",
        panels="kind",
        title="Held-out loss against the clip",
    ),
)
