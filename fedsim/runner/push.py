"""What of a run folder is given away, and the way to the hub."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path

from fedsim.accounting.promise import origin, verify
from fedsim.errors import ConfigError
from fedsim.runner.folder import RunFolder

_WRITTEN = (  # by fedsim, transformers and peft
    *("README.md", "privacy.json", "config.json", "generation_config.json", "adapter_config.json"),
    *("*.safetensors", "*.safetensors.index.json", "chat_template.jinja"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt"),
    *("tokenizer.model", "spiece.model", "sentencepiece.model", "sentencepiece.bpe.model"),
)
# What there is of another model would be opened beside these: an adapter, for example.
_REPLACED = (
    *_WRITTEN,
    *(
        "*.bin",
        "*.bin.index.json",
        "*.gguf",
        "*.h5",
        "*.msgpack",
        "*.onnx",
        "*.ot",
        "*.pt",
        "*.pth",
    ),
)
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Parcel:
    """The files of one folder that leave the machine, all of them.

    Attributes:
        folder: model/ or adapter/ of a run.
        files: its files, by name.
        statement: what is promised, as its privacy.json says, and what it began with.
    """

    folder: Path
    files: tuple[Path, ...]
    statement: str


def parcel(run_dir: Path, *, merged: bool = False) -> Parcel:
    """Return what `fedsim push` would send: the adapter, or the model where there is none.

    Args:
        run_dir: of a finished run.
        merged: the whole model, even where there is an adapter.

    Raises:
        ConfigError: the run is not finished, its promise was edited, or the folder holds a link, a
            folder or a file that fedsim does not write.
    """
    run = RunFolder(run_dir)
    if not (run.report.exists() and run.is_trained()):
        raise ConfigError(
            f"RUN_DIR = {str(run_dir)!r}: holds no finished run (report.json, model/ or adapter/)"
        )
    folder = run.adapter if run.adapter.exists() and not merged else run.model
    if not folder.exists():
        raise ConfigError(
            f"--merged: {str(run_dir)!r} has no model/; it was run with merged = false"
        )
    content = verify(folder)
    if not (folder / "README.md").is_file():
        raise ConfigError(
            f"{folder / 'README.md'}: is not there, and no model goes without its card"
        )
    files = sorted(folder.iterdir(), key=lambda path: path.name)
    for path in files:
        known = any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _WRITTEN)
        if path.is_symlink() or not path.is_file() or not known:
            raise ConfigError(
                f"{path}: not what fedsim writes there, and nothing else is sent; move it away"
            )
    statement = f"{content['statement']} {origin(content)}".rstrip()
    return Parcel(folder, tuple(files), statement)


def send(found: Parcel, repo: str, *, public: bool) -> str:
    """Upload to the Hugging Face hub as one commit; return its address.

    What the repository has of another model is deleted in the same commit; its history keeps it.

    Raises:
        ConfigError: a name that is none, or the hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415  (slow)

    if not _REPO.fullmatch(repo):
        raise ConfigError(f"REPO = {repo!r}: give OWNER/NAME")
    api = HfApi()
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=found.folder,
            allow_patterns=[path.name for path in found.files],
            delete_patterns=list(_REPLACED),
            commit_message="A model trained by fedsim, with its promise",
        )
    except Exception as error:  # the client and what it builds on have errors of many kinds
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"REPO = {repo!r}: the hub cannot be reached or refuses: {reason}; log in with "
            "`hf auth login`, or set HF_ENDPOINT"
        ) from error
    return str(commit.commit_url)
