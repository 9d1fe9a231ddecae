"""A checksum inside a safetensors file: a bit that changed anywhere in it is found.

The digest stands in the file's header. It is that of the whole file, header included, with 64
zeros in the digest's own place.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

PLACEHOLDER = "0" * 64
"""What stands in the header until the digest is known."""

_LENGTH_BYTES = 8  # of the header's length, with which the file begins
_BUFFER = 1 << 20


def sealed(content: bytes) -> bytes:
    """Return a safetensors file with the SHA-256 (hex) in the place of its one placeholder.

    Raises:
        ValueError: there is no placeholder in the header, or more than one.
    """
    end = _header_end(content[:_LENGTH_BYTES])
    header = content[:end]
    if header.count(PLACEHOLDER.encode()) != 1:
        raise ValueError("the header must hold the placeholder once")
    digest = hashlib.sha256(content).hexdigest()
    return header.replace(PLACEHOLDER.encode(), digest.encode()) + content[end:]


def is_intact(path: Path, digest: str) -> bool:
    """Whether a file is the one that was sealed with `digest`; reads it through.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        length = file.read(_LENGTH_BYTES)
        header = length + file.read(_header_end(length) - _LENGTH_BYTES)
        if len(digest) != len(PLACEHOLDER) or header.count(digest.encode()) != 1:
            return False
        found = hashlib.sha256(header.replace(digest.encode(), PLACEHOLDER.encode()))
        while block := file.read(_BUFFER):
            found.update(block)
    return found.hexdigest() == digest


def _header_end(length: bytes) -> int:
    return _LENGTH_BYTES + int.from_bytes(length, "little")
