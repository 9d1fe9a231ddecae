"""What of a run folder is given away, and the way to the hub."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.accounting.promise import origin, verify
from fedsim.errors import ConfigError
from fedsim.registry import names
from fedsim.runner.folder import RunFolder
from fedsim.utils.files import shown_name

_WRITTEN = (  # by fedsim, transformers and peft
    *("README.md", "privacy.json", "config.json", "generation_config.json", "adapter_config.json"),
    *("*.safetensors", "*.safetensors.index.json", "chat_template.jinja"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt"),
    *("tokenizer.model", "spiece.model", "sentencepiece.model", "sentencepiece.bpe.model"),
)
_KEPT = (".gitattributes", "LICENSE*")  # of the repository
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Parcel:
    """The files of one folder that leave the machine, all of them.

    Attributes:
        folder: model/ or adapter/ of a run.
        files: its files, by name.
        statement: what is promised, as its privacy.json says, and what it began with.
        note: of an adapter whose base nobody else has; else empty.
    """

    folder: Path
    files: tuple[Path, ...]
    statement: str
    note: str


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
    run.check_there()
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
        if path.is_symlink() or not path.is_file() or not _is_one(path.name, _WRITTEN):
            raise ConfigError(
                f"{path}: not what fedsim writes there, and nothing else is sent; move it away"
            )
    statement = f"{content['statement']} {origin(content)}".rstrip()
    return Parcel(folder, tuple(files), statement, about_base(run) if folder == run.adapter else "")


def about_base(run: RunFolder) -> str:
    """Return what is said of an adapter whose base nobody else has; else an empty string."""
    base = run.read_config().model.name_or_path
    if base not in names("models") and not Path(base).expanduser().exists():
        return ""
    return (
        f"The adapter's base, {shown_name(base)}, is on no hub: who has the adapter alone cannot "
        "open it. --merged sends the whole model."
    )


def _is_one(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a path is of these names; one in a folder is of none."""
    return "/" not in name and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def check_repo(repo: str) -> None:
    """Raise `ConfigError` for what is no name of a repository."""
    if not _REPO.fullmatch(repo):
        raise ConfigError(f"REPO = {repo!r}: give OWNER/NAME")


def send(found: Parcel, repo: str, *, public: bool, replace: bool = False) -> tuple[str, list[str]]:
    """Upload to the Hugging Face hub as one commit; return its address and what it deleted.

    Another model's files would be opened beside these: an adapter, for example. Those that fedsim
    writes too are deleted in the same commit; the repository's history keeps them.

    Args:
        found: what is sent.
        repo: OWNER/NAME, which is made where there is none.
        public: whether it is made public.
        replace: delete whatever else the repository has, but its license.

    Raises:
        ConfigError: a name that is none, the repository has files of other kinds and `replace` is
            false, or the hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415  (slow)

    check_repo(repo)
    api = HfApi()
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        sent = {path.name for path in found.files}
        there = [name for name in api.list_repo_files(repo) if name not in sent]
        deleted = [name for name in there if not _is_one(name, _KEPT)]
        foreign = [name for name in deleted if not _is_one(name, _WRITTEN)]
        if foreign and not replace:
            raise ConfigError(
                f"REPO = {repo!r}: has {len(foreign)} files that fedsim does not write, such as "
                f"{foreign[0]!r}, which may be another model's; give another repository, or "
                "--replace to delete them"
            )
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=found.folder,
            allow_patterns=[path.name for path in found.files],
            delete_patterns=[glob.escape(name) for name in deleted],
            commit_message="A model trained by fedsim, with its promise",
        )
    except ConfigError:
        raise
    except Exception as error:  # the client and what it builds on have errors of many kinds
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"REPO = {repo!r}: the hub cannot be reached or refuses: {reason}; log in with "
            "`hf auth login`, or set HF_ENDPOINT"
        ) from error
    return str(commit.commit_url), deleted
