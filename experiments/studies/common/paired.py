"""Differences seed by seed: lines with one seed share its split, which is most of the spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedsim.report.grid_result import CellResult


def against(lines: Sequence[CellResult], key: str, reference: str) -> str:
    """Return by how much each line's losses are above the reference's with the same seeds, in nats.

    Args:
        lines: that differ in one setting.
        key: of that setting.
        reference: the value compared with.

    Seeds that either line lacks, or in which either diverged, are left out; so is a line that
    shares none. "" where nothing can be compared.
    """
    base = next((_by_seed(line) for line in lines if line.settings[key] == reference), {})
    shown = []
    for line in lines:
        own = _by_seed(line)
        apart = [own[seed] - base[seed] for seed in own.keys() & base.keys()]
        if line.settings[key] != reference and apart:
            least, most = min(apart), max(apart)
            span = f"{least:+.4f}" if least == most else f"{least:+.4f} to {most:+.4f}"
            shown.append(f"{line.settings[key]} {span}")
    return f"seed by seed above {reference}: {', '.join(shown)}" if shown else ""


def _by_seed(line: CellResult) -> dict[int, float]:
    return {
        seed: loss
        for seed, loss in zip(line.seeds, line.losses, strict=True)
        if math.isfinite(loss)
    }
