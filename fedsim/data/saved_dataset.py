"""A folder that `datasets` saved: its train split, from files of the folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsim.json_text import read_json

STATE, SPLITS = "state.json", "dataset_dict.json"


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` made the folder."""
    return (folder / STATE).is_file() or (folder / SPLITS).is_file()


def load_saved(datasets: Any, folder: Path) -> Any:  # noqa: ANN401  (an untyped module)
    """Return the data set, or its split "train".

    Raises:
        ValueError: there is no such split, or a file or a split is named that is not in the folder.
    """
    _check_names(folder)
    dataset = datasets.load_from_disk(str(folder))
    if not isinstance(dataset, dict):
        return dataset
    if "train" not in dataset:
        raise ValueError(f"no split 'train'; splits: {', '.join(dataset)}")
    return dataset["train"]


def _check_names(folder: Path) -> None:
    named: list[Any] = []
    if (folder / SPLITS).is_file():
        named += read_json(folder / SPLITS)["splits"]
    for path in folder.rglob(STATE):
        named += [file["filename"] for file in read_json(path)["_data_files"]]
    for name in named:
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{name!r} is no name of a file in the folder")
