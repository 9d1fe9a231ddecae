"""Paths, atomic writes, and errors of the disk."""

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
_RUST = re.compile(r"\(os error (\d+)\)")  # safetensors and tokenizers raise their own classes


def shown_name(path_or_id: str) -> str:
    """Return the last part of an existing path; return other names unchanged.

    Published texts use it, so that they do not reveal paths on this machine.
    """
    path = Path(path_or_id).expanduser()
    return path.resolve().name if path.exists() else path_or_id


def hub_folder(name: str, file: str) -> Path | None:
    """Return the folder in the hub's cache with this file of a model; fetch it if possible.

    None if the hub has no such model or file, or if neither hub nor cache can provide it.
    """
    from transformers.utils.hub import cached_file  # noqa: PLC0415  (slow)

    path = None
    with suppress(OSError, ValueError):  # the hub is unreachable, or the name is no hub id
        path = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    return None if path is None else Path(path).parent


def stamp(path: Path) -> tuple[str, int, int, int]:
    """Return values that change if a file changes, without reading it.

    They include the inode's change time, because archives and tools can reset the modification
    time.
    """
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns


def file_digest(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file name to disk errors without one, such as those of a failed write.

    Raises:
        OSError: a disk error in the block, with a file name.
    """
    try:
        yield
    except Exception as error:
        if (number := _number(error)) is None or getattr(error, "filename", None):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def disk_message(error: BaseException) -> str | None:
    """Return a message for an error of the disk; None for other errors."""
    number = _number(error)
    if number is None:
        return None
    name = error.filename if isinstance(error, OSError) and error.filename else "a file"
    refused = "written" if number in (*_NO_ROOM, errno.EROFS) else "read or written"
    return (
        f"{name}: cannot be {refused}: {os.strerror(number)}; earlier files are intact: free disk "
        "space or correct the permissions, and start again (a run: with --resume)"
    )


def _number(error: BaseException) -> int | None:
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := _RUST.search(str(error))):
        number = int(found[1])
    return number if number in _OF_THE_DISK else None


def cache_dir() -> Path:
    """Return `$FEDSIM_CACHE`, or `$XDG_CACHE_HOME/fedsim`, or `~/.cache/fedsim`.

    Raises:
        ConfigError: neither variable is set, and there is no home folder.
    """
    if explicit := os.environ.get("FEDSIM_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    with about(f"there is no cache folder: {_OWN_CACHE}: ", (RuntimeError,)):
        return (Path(base) if base else Path.home() / ".cache") / "fedsim"


def writable_cache_dir() -> Path:
    """Return `cache_dir()`, after creating it and a test write.

    Raises:
        ConfigError: the folder cannot be written.
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
    """Raise `ValueError` if a file is a git-LFS pointer, as after a clone without git-lfs."""
    for path in files:
        if path.is_file():
            with path.open("rb") as file:
                if file.read(len(_POINTER)) == _POINTER:
                    raise ValueError(f"{path.name} is a git-LFS pointer: run git lfs pull")


def write_atomically(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Replace `path` by `content`; see `whole_file`. Only its owner can read a `private` file."""
    data = content.encode() if isinstance(content, str) else content
    with whole_file(path) as temporary:
        temporary.touch(0o600 if private else 0o666)
        temporary.write_bytes(data)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`, which replaces `path` when the block ends.

    Readers see the old file or the new file, but no mixture. The file is synced, renamed, and its
    folder synced, so that a later power failure cannot restore the old content. An error leaves no
    temporary file. The new file keeps the permissions of the old one.

    Raises:
        OSError: the file cannot be written; the message names `path`.
    """
    temporary = _beside(path)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            if path.exists() and path.stat().st_mode != temporary.stat().st_mode:
                shutil.copymode(path, temporary)  # such as write access of a group
            _sync(temporary)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent)


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside `path`; the block fills and renames it.

    If the folder still exists at the end of the block, it is deleted.

    Raises:
        OSError: the folder cannot be created.
    """
    temporary = _beside(path)
    with naming(temporary):
        temporary.mkdir(parents=True)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_all(folder: Path) -> None:
    """Wait until the folder and all its content, at any depth, are on the disk."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def rename_synced(path: Path, target: Path) -> None:
    """Rename, and wait until the new name is on the disk."""
    path.rename(target)
    _sync(target.parent)


def drop_temporaries(folder: Path) -> None:
    """Delete temporary files of killed writers; no other process may be writing to the folder."""
    for path in folder.glob(".*.tmp"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _beside(path: Path) -> Path:
    # The random part is needed because processes of two containers may have equal ids.
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
