"""A disk that is full, read-only or forbidden: told apart from mistakes, and said in one line."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OF_THE_DISK = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
}
_READING_TOO = {errno.EACCES, errno.EPERM, errno.EIO}
_RUST = re.compile(r"\(os error (\d+)\)")  # safetensors and tokenizers raise classes of their own


@contextmanager
def naming(path: Path, *, keep: bool = False) -> Iterator[None]:
    """Let what the disk refuses in the block name the file: a write that fails does not.

    Args:
        path: of the file.
        keep: whether an error that names a file already keeps that name.

    Raises:
        OSError: with `path` as its file name, for every error of the disk in the block.
    """
    try:
        yield
    except Exception as error:
        if (number := _number(error)) is None or (keep and getattr(error, "filename", None)):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def disk_message(error: BaseException) -> str | None:
    """Return a line on what the disk refused, or None for any other error."""
    number = _number(error)
    if number is None:
        return None
    name = error.filename if isinstance(error, OSError) and error.filename else "a file"
    refused = "read or written" if number in _READING_TOO else "written"
    return (
        f"{name}: cannot be {refused}: {os.strerror(number)}; what was written before is whole: "
        "make room, or get the right to write, and start again (a run: with --resume)"
    )


def _number(error: BaseException) -> int | None:
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := _RUST.search(str(error))):
        number = int(found[1])
    return number if number in _OF_THE_DISK else None
