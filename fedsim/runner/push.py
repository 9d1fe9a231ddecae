"""Upload a run's adapter or model to the Hugging Face hub, with its card and privacy.json."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path

from fedsim.accounting.promise import origin, verify
from fedsim.errors import ConfigError
from fedsim.registry import names
from fedsim.runner.folder import RunFolder
from fedsim.utils.files import shown_name

_WRITTEN = (  # by fedsim, transformers and peft
    *("README.md", "*.json", "*.safetensors", "chat_template.jinja", "vocab.txt", "merges.txt"),
    "*.model",
)


@dataclass(frozen=True)
class Parcel:
    """The files to upload.

    Attributes:
        folder: model/ or adapter/ of a run.
        files: files of the folder to upload, sorted by name.
        statement: the guarantees in its privacy.json, of the run and of the starting model.
        note: warning on an adapter with a base model that is not on the hub; else empty.
    """

    folder: Path
    files: tuple[Path, ...]
    statement: str
    note: str


def parcel(run_dir: Path, *, merged: bool = False) -> Parcel:
    """Return the files that `fedsim push` uploads: the adapter, or the model if there is none.

    Args:
        run_dir: folder of a finished run.
        merged: take the whole model, even if there is an adapter.

    Raises:
        ConfigError: the run is not finished, or its privacy.json does not verify.
    """
    run = RunFolder(run_dir)
    run.check_finished()
    folder = run.adapter if run.adapter.exists() and not merged else run.model
    content = verify(folder)
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and any(fnmatch.fnmatchcase(path.name, one) for one in _WRITTEN)
    ]
    note, base = "", run.read_config().model.name_or_path
    if folder == run.adapter and (base in names("models") or Path(base).expanduser().exists()):
        note = (
            f"The adapter's base, {shown_name(base)}, is not on the hub: an adapter alone cannot "
            "be opened. --merged sends the whole model."
        )
    return Parcel(folder, tuple(files), f"{content['statement']} {origin(content)}".rstrip(), note)


def send(found: Parcel, repo: str, *, public: bool) -> str:
    """Upload as one commit and return its address; create the repository if needed.

    Raises:
        ConfigError: the hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415  (slow)

    try:
        api = HfApi()
        api.create_repo(repo, private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=found.folder,
            allow_patterns=[path.name for path in found.files],
            delete_patterns=list(_WRITTEN),  # files of an older model would be loaded too
            commit_message="Upload a model trained by fedsim, with its privacy guarantee",
        )
    except Exception as error:  # the hub's client raises errors of many types
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"REPO = {repo!r}: the hub cannot be reached or refuses: {reason}; log in with "
            "`hf auth login`, or set HF_ENDPOINT"
        ) from error
    return str(commit.commit_url)
