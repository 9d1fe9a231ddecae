"""A preparation of a few records, without a source and without a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from fedsim.data.preparation.prepare import AnyStep, Prepared
from fedsim.data.preparation.step import Step
from fedsim.data.sources.records import RawRecord

Row = tuple[str | None, str | None] | tuple[str | None, str | None, dict[str, Any]]


def step(name: str, **settings: Any) -> Step:  # noqa: ANN401
    made: Step = TypeAdapter(AnyStep).validate_python({"step": name, **settings})
    return made


def prepare(
    rows: Sequence[Row], *steps: Step
) -> tuple[list[tuple[str | None, str | None]], dict[str, int]]:
    """Return what the steps let through and what they counted."""
    prepared = Prepared([RawRecord(*row) for row in rows], steps)
    return [record[:2] for record in prepared], dict(prepared.dropped)
