"""Figure of the benchmarks: engines over the floor, and peers over fedsim."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Result = Mapping[str, Any]


def draw(rows: Sequence[Result]) -> bytes:
    """Return a PNG with a panel for engines over the floor, and one for peers over fedsim."""
    engines = {
        (row["case"], row["engine"]): float(row["ratio_to_floor"])
        for row in rows
        if row["benchmark"] == "engines" and "ratio_to_floor" in row
        if row["engine"] not in ("floor", "whole round")
    }
    peers = {
        (row["case"], row["engine"]): float(row["ratio"])
        for row in rows
        if row["benchmark"] == "peers" and row.get("ratio") is not None
    }
    panels = [
        (engines, "seconds over the floor's"),
        (peers, "peer's seconds over fedsim auto's"),
    ]
    heights = [max(2, 2 + len(values)) for values, _ in panels]
    figure = Figure(figsize=(9, 1 + 0.16 * sum(heights)), layout="constrained")
    axes = figure.subplots(2, 1, height_ratios=heights)
    for axis, (values, label) in zip(axes, panels, strict=True):
        _bars(axis, values, label)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _bars(axis: Axes, values: Mapping[tuple[str, str], float], label: str) -> None:
    """Draw a bar for each (case, engine), cases below one another, 1 as a line."""
    cases = list(dict.fromkeys(case for case, _ in values))
    series = list(dict.fromkeys(name for _, name in values))
    width = 0.8 / max(1, len(series))
    for place, name in enumerate(series):
        present = [index for index, case in enumerate(cases) if (case, name) in values]
        axis.barh(
            np.array(present) + (place - (len(series) - 1) / 2) * width,
            [values[cases[index], name] for index in present],
            height=width,
            label=name,
        )
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(cases)), cases)
    axis.invert_yaxis()
    axis.set_xlabel(label)
    if series:
        axis.legend(fontsize="small")
