"""Check a model's files before they are opened: safetensors, complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsim.utils.files import check_no_pointers
from fedsim.utils.json_text import read_json

_WEIGHTS = "*.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("*token*", "vocab*", "*.model", "tekken.json")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check_folder(folder: Path) -> None:
    """Check a model folder before anything in it is opened.

    Raises:
        ValueError: its weights are pickled, are adapters only or are named elsewhere, there is no
            tokenizer, or a file is a pointer of git-LFS.
        OSError: a file cannot be read.
    """
    check_no_pointers(sorted(folder.iterdir()))
    if (folder / "adapter_config.json").exists():
        raise ValueError(
            "it holds adapters, which are no whole model; merge them into theirs first"
        )
    weights = sorted(folder.glob(_WEIGHTS))
    if not weights:
        pickled = sorted(path.name for kind in _PICKLED for path in folder.glob(kind))
        reason = "it has no weights"
        if pickled:
            reason = f"its weights ({', '.join(pickled)}) can run code when they are read"
        raise ValueError(f"{reason}; wanted: safetensors")
    if not any(any(folder.glob(kind)) for kind in _TOKENIZERS):  # of some, an empty one would open
        raise ValueError(
            "the folder has no tokenizer; save one into it with tokenizer.save_pretrained"
        )
    if (folder / _INDEX).exists():
        _check_names(read_json(folder / _INDEX))


def _check_names(index: Any) -> None:  # noqa: ANN401  (whatever the file says)
    named = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(named, dict):
        raise ValueError(f"{_INDEX}: expected an object with weight_map")
    for name in named.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{_INDEX}: {name!r} is no file of the folder")
