"""The README.md of a folder that is given away: the hub's metadata, and what is promised."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedsim.accounting.promise import NAME
from fedsim.accounting.trade_off import attacker_text
from fedsim.report.schema import CoveredScores
from fedsim.report.wording import scores_text

_NOT_COVERED = (
    "the text from which the starting weights and the tokenizer were made",
    "a choice of settings that the promise does not count, after looking at earlier runs on the "
    "same text",
    "other models trained on the same users' text: their ε add up, unless they shared a ledger",
    "what somebody who knows a user's text can learn of people whom that text speaks about",
)


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
        continued: the adapter that training went on from.
        scores: private ones, which that ε covers.
    """
    library = "peft" if adapter else "transformers"
    name = "adapter" if adapter else "model"
    head = [
        "---",
        f"library_name: {library}",
        "pipeline_tag: text-generation",
        *([f"base_model: {json.dumps(base, ensure_ascii=False)}"] if base.count("/") == 1 else []),
        "tags: [fedsim, differential-privacy, user-level-privacy]",
        "---",
    ]
    went_on = "" if continued is None else f" and its adapter `{continued}`"
    attacker = attacker_text(promise)
    assumptions = promise["assumptions"] or ["none: there is no guarantee"]
    counted = "hypothetical ε" if promise["hypothetical"] else "promise"
    body = [
        f"# A language {name} trained by fedsim",
        "",
        f"Trained from `{base}`{went_on} with {promise['software']}.",
        "",
        "## Privacy",
        "",
        promise["statement"],
        "",
        *([] if attacker is None else [attacker, ""]),
        "It rests on:",
        "",
        *(f"- {sentence}" for sentence in assumptions),
        "",
        "No ε covers:",
        "",
        *(f"- {sentence}" for sentence in _NOT_COVERED),
        "",
        *(
            ["## Utility", "", f"{scores_text(scores)} The {counted} above counts them.", ""]
            if scores
            else []
        ),
        "## How to check it",
        "",
        f"`{NAME}` has sampler, noise multiplier and number of rounds. `fedsim account verify",
        "FOLDER` computes ε from them again, and refuses a file that was edited and weights that",
        "are others. It cannot see whether training was done as the file says.",
        "",
    ]
    return "\n".join([*head, *body])
