"""Check that a model's files are complete safetensors before they are opened."""

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
        ValueError: the weights are not safetensors, are only adapters or are outside of the
            folder, the tokenizer is missing, or a file is a git-LFS pointer.
        OSError: a file cannot be read.
    """
    check_no_pointers(sorted(folder.iterdir()))
    if (folder / "adapter_config.json").exists():
        raise ValueError("it holds only adapters; merge them into their base model first")
    if not any(folder.glob(_WEIGHTS)):
        raise ValueError(
            "it has no safetensors weights; pickles are not read, as they can run code"
        )
    # Without these files, transformers may open an empty tokenizer.
    if not any(any(folder.glob(kind)) for kind in _TOKENIZERS):
        raise ValueError(
            "the folder has no tokenizer; save one into it with tokenizer.save_pretrained"
        )
    if (folder / _INDEX).exists():
        for name in read_json(folder / _INDEX)["weight_map"].values():
            if Path(name).name != name:
                raise ValueError(f"{_INDEX}: {name!r} is not a file in the folder")
