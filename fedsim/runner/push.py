"""Upload of a run's adapter or model to the Hugging Face hub, with its card and its promise."""

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
    """The files of one folder that are uploaded.

    Attributes:
        folder: model/ or adapter/ of a run.
        files: its files, by name.
        statement: the promise in its privacy.json, and that of its start.
        note: on an adapter whose base nobody else has; else empty.
    """

    folder: Path
    files: tuple[Path, ...]
    statement: str
    note: str


def parcel(run_dir: Path, *, merged: bool = False) -> Parcel:
    """Return the files that `fedsim push` uploads: the adapter, or the model where there is none.

    Args:
        run_dir: of a finished run.
        merged: the whole model, even where there is an adapter.

    Raises:
        ConfigError: the run is not finished, or its promise does not verify.
    """
    run = RunFolder(run_dir)
    run.check_there()
    folder = run.adapter if run.adapter.exists() and not merged else run.model
    if not (run.report.exists() and folder.exists()):
        raise ConfigError(
            f"RUN_DIR = {str(run_dir)!r}: holds no finished run (report.json and {folder.name}/)"
        )
    content = verify(folder)
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and any(fnmatch.fnmatchcase(path.name, one) for one in _WRITTEN)
    ]
    note, base = "", run.read_config().model.name_or_path
    if folder == run.adapter and (base in names("models") or Path(base).expanduser().exists()):
        note = (
            f"The adapter's base, {shown_name(base)}, is on no hub: an adapter alone cannot be "
            "opened. --merged sends the whole model."
        )
    return Parcel(folder, tuple(files), f"{content['statement']} {origin(content)}".rstrip(), note)


def send(found: Parcel, repo: str, *, public: bool) -> str:
    """Upload as one commit and return its address; the repository is made where there is none.

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
            delete_patterns=list(_WRITTEN),  # of an older model there, which would be opened too
            commit_message="A model trained by fedsim, with its promise",
        )
    except Exception as error:  # the client and what it builds on have errors of many kinds
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"REPO = {repo!r}: the hub cannot be reached or refuses: {reason}; log in with "
            "`hf auth login`, or set HF_ENDPOINT"
        ) from error
    return str(commit.commit_url)
