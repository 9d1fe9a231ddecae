"""Paths, whole-file writes, and which errors come from the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsim.errors import ConfigError, about

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_OF_THE_DISK = _NO_ROOM | {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
_OWN_CACHE = (
    "set the environment variable FEDSIM_CACHE to a folder that can be written, for example "
    "FEDSIM_CACHE=$PWD/cache"
)
_POINTER = b"version https://git-lfs.github.com/spec/"
_RUST = re.compile(r"\(os error (\d+)\)")  # safetensors and tokenizers raise classes of their own


def shown_name(path_or_id: str) -> str:
    """Return a file's or folder's own name, or what is no path as it is.

    For what is given away: where a file lies on this machine is no reader's business.
    """
    path = Path(path_or_id).expanduser()
    return path.resolve().name if path.exists() else path_or_id


def hub_folder(name: str, file: str) -> Path | None:
    """Return the folder of the hub's cache that has this file of a model, fetched if it can be.

    None where the hub has no such model or file, or where neither hub nor cache can say.
    """
    from transformers.utils.hub import cached_file  # noqa: PLC0415  (slow)

    found = None
    with suppress(OSError, ValueError):  # no hub was reached, or the name is no hub id
        found = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found).parent


def stamp(path: Path) -> tuple[str, int, int, int]:
    """Return what changes when a file does, without reading it.

    The time at which its entry changed too: archives and tools set the other one to what it was.
    """
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns


def file_digest(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of the disk that name none: a write that fails does not.

    Raises:
        OSError: for every error of the disk in the block, with a file name.
    """
    try:
        yield
    except Exception as error:
        if (number := _number(error)) is None or getattr(error, "filename", None):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def disk_message(error: BaseException) -> str | None:
    """Return a line on what the disk refused, or None for any other error."""
    number = _number(error)
    if number is None:
        return None
    name = error.filename if isinstance(error, OSError) and error.filename else "a file"
    refused = "written" if number in (*_NO_ROOM, errno.EROFS) else "read or written"
    return (
        f"{name}: cannot be {refused}: {os.strerror(number)}; what was written before is whole: "
        "make room, or get the right to write, and start again (a run: with --resume)"
    )


def _number(error: BaseException) -> int | None:
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := _RUST.search(str(error))):
        number = int(found[1])
    return number if number in _OF_THE_DISK else None


def cache_dir() -> Path:
    """Return `$FEDSIM_CACHE`, or `$XDG_CACHE_HOME/fedsim`, or `~/.cache/fedsim`.

    Raises:
        ConfigError: there is no home folder either.
    """
    if explicit := os.environ.get("FEDSIM_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    with about(f"there is no cache folder: {_OWN_CACHE}: ", (RuntimeError,)):
        return (Path(base) if base else Path.home() / ".cache") / "fedsim"


def writable_cache_dir() -> Path:
    """Return `cache_dir()`, made and tried.

    Raises:
        ConfigError: nothing can be written there.
    """
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(
            f"the cache folder {folder} cannot be written ({error.strerror}): {_OWN_CACHE}"
        ) from None
    return folder


def check_no_pointers(files: Iterable[Path]) -> None:
    """Raise `ValueError` where a clone without git-lfs left a pointer in place of a file."""
    for path in files:
        if path.is_file():
            with path.open("rb") as file:
                if file.read(len(_POINTER)) == _POINTER:
                    raise ValueError(f"{path.name} is a git-LFS pointer: run git lfs pull")


def write_atomically(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Replace `path` by `content`; see `whole_file`. A `private` file is for its owner alone."""
    data = content.encode() if isinstance(content, str) else content
    with whole_file(path) as temporary:
        temporary.touch(0o600 if private else 0o666)
        temporary.write_bytes(data)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a file beside `path` to be written, which replaces `path` when the block ends.

    A reader sees the old file or the new one, never half. The file is synced, renamed, and its
    folder synced: after the block a power cut cannot bring the old content back. What fails, for
    want of room say, leaves nothing behind.

    It keeps the rights of the file that it replaces.

    Raises:
        OSError: it could not be written; it names `path`.
    """
    temporary = _beside(path)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            if path.exists() and path.stat().st_mode != temporary.stat().st_mode:
                shutil.copymode(path, temporary)  # a group may write what others share
            _sync(temporary)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent)


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Give an empty hidden folder beside `path` to be filled, then renamed by the block.

    What is left of it when the block ends is removed.

    Raises:
        OSError: it could not be made.
    """
    temporary = _beside(path)
    with naming(temporary):
        temporary.mkdir(parents=True)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_all(folder: Path) -> None:
    """Wait until the folder and everything in it, at any depth, is on the disk."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def rename_synced(path: Path, target: Path) -> None:
    """Rename, and wait until the new name is on the disk."""
    path.rename(target)
    _sync(target.parent)


def drop_temporaries(folder: Path) -> None:
    """Remove what killed writers left in a folder that no other process is writing into."""
    for path in folder.glob(".*.tmp"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _beside(path: Path) -> Path:
    # Processes of two containers may have one number.
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
