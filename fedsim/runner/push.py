"""Upload a run's adapter or model to the Hugging Face hub, with its card and privacy.json."""

from __future__ import annotations

import fnmatch
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


def parcel(run_dir: Path, *, merged: bool = False) -> tuple[list[Path], str]:
    """Return the files that `fedsim push` uploads: the adapter, or the model if there is none.

    With them come the guarantees in their privacy.json, of the run and of the starting model, and a
    warning on an adapter whose base model is not on the hub.

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
    base = run.read_config().model.name_or_path
    words = [content["statement"], origin(content)]
    if folder == run.adapter and (base in names("models") or Path(base).expanduser().exists()):
        words.append(
            f"The adapter's base, {shown_name(base)}, is not on the hub: an adapter alone cannot "
            "be opened. --merged sends the whole model."
        )
    return files, " ".join(filter(None, words))


def send(files: list[Path], repo: str) -> str:
    """Upload as one commit and return its address; create a private repository if needed.

    Raises:
        ConfigError: the hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415  (slow)

    try:
        api = HfApi()
        api.create_repo(repo, private=True, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=files[0].parent,
            allow_patterns=[path.name for path in files],
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
