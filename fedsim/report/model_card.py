"""The README.md of a folder that is given away: the hub's metadata, and the promise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from fedsim.accounting.trade_off import attacker_text
from fedsim.report.html import render_page
from fedsim.report.schema import CoveredScores


def model_card(
    promise: Mapping[str, Any],
    base: str,
    *,
    adapter: bool,
    continued: str | None = None,
    scores: CoveredScores | None = None,
) -> str:
    """Return the card as Markdown with a YAML head; it has no number that ε does not cover.

    Args:
        promise: the content of privacy.json.
        base: what training started from: a name, a folder or a hub id.
        adapter: whether the folder holds an adapter or a whole model.
        continued: the adapter that training continued.
        scores: private ones, which that ε covers.
    """
    card = render_page(
        "card.md.jinja",
        promise=promise,
        base=base,
        adapter=adapter,
        continued=continued,
        scores=scores,
        attacker=attacker_text(promise),
        json=partial(json.dumps, ensure_ascii=False),
    )
    return f"{card}\n"
