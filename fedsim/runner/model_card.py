"""The model card (README.md) of a saved model: metadata for the hub, guarantee, how to load it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
from huggingface_hub import ModelCardData, metadata_load

from fedsim.accounting.trade_off import attacker_text
from fedsim.config import Config
from fedsim.data.config import load_recipe
from fedsim.data.sources.shakespeare import BUILT_IN
from fedsim.materials import loader_name
from fedsim.registry import names
from fedsim.report.html import render_page
from fedsim.report.schema import CoveredScores
from fedsim.utils.files import hub_folder, shown_name

_LICENCE = ("license", "license_name", "license_link")
_OF_THE_START = {"name_or_path", "adapter", "pretraining_steps", "attention", "merged"}


def model_card(
    config: Config,
    folder: Path,
    promise: Mapping[str, Any],
    *,
    adapter: bool,
    scores: CoveredScores | None = None,
) -> str:
    """Return the card as Markdown with a YAML head; ε covers all of its numbers.

    Args:
        config: config of the run; the card omits paths on this machine.
        folder: folder of the saved model or adapter.
        promise: the content of privacy.json.
        adapter: whether the folder holds an adapter instead of a whole model.
        scores: private scores, which the ε covers.
    """
    model, source = config.model, config.data.source
    base = model.name_or_path
    opened_by = "peft" if adapter else "transformers"
    if loader_name(base if adapter else str(folder)) != "transformers" or (
        adapter and (base.endswith(".gguf") or model.quantisation)  # peft would not round the base
    ):
        opened_by = "fedsim"
    licence = _licence(base)
    base_on_hub = base not in names("models") and not Path(base).expanduser().exists()
    data_on_hub = source not in BUILT_IN and not Path(source).expanduser().exists()
    data = "the plays of Shakespeare" if source in BUILT_IN else "a data set that is not on the hub"
    if data_on_hub:
        data = f"`{source}` on the Hugging Face hub"
    if config.data.recipe is not None:
        data += f" ({load_recipe(config.data.recipe).description.rstrip('.')})"
    promised = promise["noise"] == "secure" and not promise["hypothetical"]
    head = ModelCardData(
        base_model=base if base_on_hub else None,
        base_model_relation=("adapter" if adapter else "finetune") if base_on_hub else None,
        datasets=[source] if data_on_hub else None,
        library_name=opened_by,
        pipeline_tag="text-generation",
        tags=["fedsim", *(["differential-privacy", "user-level-privacy"] if promised else [])],
        **licence,
    )
    body = render_page(
        "card.md.jinja",
        adapter=adapter,
        attacker=attacker_text(promise),
        base=shown_name(base),
        base_on_hub=base_on_hub,
        config=config,
        data=data,
        continued=None if model.adapter is None else shown_name(model.adapter),
        json=partial(json.dumps, ensure_ascii=False),
        licence=licence["license"],
        opened_by=opened_by,
        plain=_plain,
        promise=promise,
        scores=scores,
        settings=tomli_w.dumps(settings(config, without_start=True)),
    )
    return f"---\n{head.to_yaml()}\n---\n{body}\n"


def settings(config: Config, *, without_start: bool = False) -> dict[str, Any]:
    """Return the config keys of training, except data and privacy.

    Args:
        config: config of the run.
        without_start: omit the keys of the starting model, which may hold paths.
    """
    return config.model_dump(
        mode="json",
        include={
            "strategy": True,
            "server": True,
            "model": True,
            "data": {"sequence_length"},
            "executor": {"precision"},
        },
        exclude={"model": _OF_THE_START} if without_start else None,
        exclude_none=True,
    )


def _licence(base: str) -> dict[str, Any]:
    """Return the licence from the base model's own card, with the hub's keys."""
    path = Path(base).expanduser()
    found: dict[str, Any] = {}
    if path.exists():
        folder: Path | None = path if path.is_dir() else path.parent
    else:
        folder = None if base in names("models") else hub_folder(base, "README.md")
    if folder is not None and (folder / "README.md").is_file():
        with suppress(Exception):  # the card may hold anything
            found = metadata_load(folder / "README.md") or {}
    kept = {key: found[key] for key in _LICENCE if isinstance(found.get(key), str)}
    if not kept.get("license_link", "https://").startswith("https://"):
        del kept["license_link"]  # a file in the base model's folder
    return kept if "license" in kept else {"license": "unknown"}


def _plain(text: str) -> str:
    """Return untrusted text as one line, with HTML, links and pictures escaped."""
    return re.sub(r"([\\<\[])", r"\\\1", " ".join(text.split()))
