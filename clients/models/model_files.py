"""Check a model's files before they are opened: safetensors, complete."""

from __future__ import annotations

from pathlib import Path

from fedsim.utils.files import check_no_pointers
from fedsim.utils.json_text import read_json

_WEIGHTS = "*.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("*token*", "vocab*", "*.model", "tekken.json")


def check_folder(folder: Path) -> None:
    """Check a model folder before anything in it is opened.

    Raises:
        ValueError: its weights are no safetensors, are adapters only or are named elsewhere, there
            is no tokenizer, or a file is a pointer of git-LFS.
        OSError: a file cannot be read.
    """
    check_no_pointers(sorted(folder.iterdir()))
    if (folder / "adapter_config.json").exists():
        raise ValueError(
            "it holds adapters, which are no whole model; merge them into theirs first"
        )
    if not any(folder.glob(_WEIGHTS)):
        raise ValueError(
            "it has no weights as safetensors; pickles, which can run code, are not read"
        )
    if not any(any(folder.glob(kind)) for kind in _TOKENIZERS):  # of some, an empty one would open
        raise ValueError(
            "the folder has no tokenizer; save one into it with tokenizer.save_pretrained"
        )
    if (folder / _INDEX).exists():
        for name in read_json(folder / _INDEX)["weight_map"].values():
            if Path(name).name != name:
                raise ValueError(f"{_INDEX}: {name!r} is no file of the folder")
