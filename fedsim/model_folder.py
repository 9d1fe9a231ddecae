"""`model/`, saved whole: a kill or a full disk leaves the folder before, the new one, or none."""

from __future__ import annotations

from pathlib import Path

from fedsim.disk_errors import naming
from fedsim.language_model import LanguageModel
from fedsim.paths import folder_beside, rename_synced, sync_all
from fedsim.tensors import Tensors


def save_model(model: LanguageModel, parameters: Tensors, folder: Path) -> None:
    """Save into a hidden folder beside `folder`, and rename that when it is on the disk.

    A folder that is there already makes way first: for a moment there is none, never a mixture.

    Raises:
        OSError: the disk is full or cannot be written; it names `folder`.
    """
    with naming(folder), folder_beside(folder) as new:
        model.save(parameters, new)
        sync_all(new)
        if not folder.exists():
            rename_synced(new, folder)
            return
        with folder_beside(folder.with_name(f"{folder.name}.old")) as old:
            folder.rename(old)  # an empty folder may be replaced
            rename_synced(new, folder)
