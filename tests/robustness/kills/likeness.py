"""Whether a run that was tortured ended as one that was left alone: bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedsim.accounting.promise import NAME, verify
from fedsim.errors import ConfigError
from fedsim.report.html import render_run
from fedsim.report.schema import load_metrics, load_report
from fedsim.runner.log import LOG

_WRITTEN_LAST = {"README.md", NAME}  # of model/, with the report
_OF_LOST_ROUNDS = {"statement", "epsilon", "releases", "trade_off"}  # `verify` computes them again
_OF_THE_NOISE = {"weights", "noise", "assumptions", "digests", *_OF_LOST_ROUNDS}
_OF_ITS_TIME = ("seconds.json", "report.json", "report.html")


def differences(reference: Path, run: Path) -> list[str]:
    """Return a line for each file that is missing, too many or other than in the reference.

    Of the report, the time of day, the seconds and the peak memory may differ; its page must be
    that of its data.
    """
    expected, found = _files(reference), _files(run)
    lines = [f"{name}: missing" for name in sorted(expected - found)]
    lines += [f"{name}: left behind" for name in sorted(found - expected)]
    lines += [
        f"{name}: differs"
        for name in sorted(expected & found - set(_OF_ITS_TIME))
        if (reference / name).read_bytes() != (run / name).read_bytes()
    ]
    if "report.json" in found and _timeless(reference) != _timeless(run):
        lines.append("report.json: differs")
    return lines + page_differences(run)


def page_differences(run: Path) -> list[str]:
    """Return a line unless `report.html` is the page of the report and metrics beside it."""
    try:
        page = (run / "report.html").read_text(encoding="utf-8")
        same = page == render_run(load_report(run), load_metrics(run))
    except (OSError, ValueError) as error:
        return [f"report: {error}"]
    return [] if same else ["report.html: not the page of report.json and metrics.jsonl"]


def model_differences(reference: Path, run: Path, seeded: bool) -> list[str]:
    """Return a line for what is wrong with `model/`, if that is there at all.

    With other noise than the reference's the weights are others, and only as many; the promise
    differs in what noise and lost rounds change, and holds. Promise and card are written last.
    """
    if not (run / "model").exists():
        return []
    expected, found = _files(reference / "model"), _files(run / "model")
    if not (run / "report.json").exists():
        expected -= _WRITTEN_LAST - found
    if expected != found:
        return [f"model/: holds {sorted(found)}"]
    return [
        f"model/{name}: half, or other than it should be"
        for name in sorted(found)
        if not _alike(reference / "model" / name, run / "model" / name, seeded)
    ]


def _alike(expected: Path, found: Path, seeded: bool) -> bool:
    if not seeded and found.name in _WRITTEN_LAST:
        return _holds(expected.parent, found)
    if seeded or found.suffix == ".json":
        return expected.read_bytes() == found.read_bytes()
    return expected.stat().st_size == found.stat().st_size


def _holds(expected: Path, found: Path) -> bool:
    """Whether a promise is true and is the reference's but for the noise, or a card says it."""
    try:
        ours = json.loads((found.parent / NAME).read_text(encoding="utf-8"))
        if found.name == NAME:
            reference, ours = verify(expected), verify(found.parent)
            return {key for key in ours if ours[key] != reference[key]} <= _OF_THE_NOISE
    except (ConfigError, OSError, ValueError):
        return False
    return ours["statement"] in found.read_text(encoding="utf-8")


def _files(folder: Path) -> set[str]:
    """Return the files but for the log, which is no part of what a run repeats."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith(LOG)}


def _timeless(run: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads((run / "report.json").read_text(encoding="utf-8"))
    except ValueError:
        return {}
    del report["created"]
    for key in ("seconds", "peak_memory_bytes"):
        del report["cost"][key]
    return report
