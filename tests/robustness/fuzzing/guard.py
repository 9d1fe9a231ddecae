"""What a reader must not do while it reads: write outside, look outside, unpickle, execute."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECRET = "outside"  # noqa: S105  (a folder beside the inputs that nothing may look into)

_PATHS = {  # event to the places of its paths among the arguments; all of them change something
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.link": (0, 1),
    "os.truncate": (0,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
}
_NEVER = (
    "pickle.find_class",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "socket.getaddrinfo",
    "urllib.Request",
)


class Guard:
    """An audit hook for the life of the process; it looks only within `watching`.

    What would happen outside is prevented by an exception, and noted in `seen`, since a reader
    may swallow the exception. The hook sees what Python does; that a library in C or Rust wrote
    nothing is told by the folders themselves, which the caller compares.
    """

    def __init__(self, folder: Path) -> None:
        self._inside = (f"{folder.resolve()}{os.sep}", "/dev/null")
        self._secret = f"{folder.resolve()}{os.sep}{SECRET}"
        self._watching = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look while the block runs."""
        self.seen.clear()
        self._watching = True
        try:
            yield
        finally:
            self._watching = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watching:
            return
        if event in _NEVER:
            self._deny(f"{event} {arguments[:2]!r:.200}")
        elif event == "open":
            path, mode, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if flags else "r" not in mode
            self._look(event, path, writes=bool(writes))
        elif event in _PATHS and not _relative_to_a_folder(event, arguments):
            for place in _PATHS[event]:
                self._look(event, arguments[place], writes=True)

    def _look(self, event: str, path: object, *, writes: bool) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a file descriptor: was opened before
        name = os.path.abspath(os.path.realpath(os.fsdecode(path)))  # noqa: PTH100
        outside = writes and not name.startswith(self._inside)
        if outside or name.startswith(self._secret):
            self._deny(f"{event} {name!r:.200}")

    def _deny(self, what: str) -> None:
        self.seen.append(what)
        raise PermissionError(f"the guard: {what}")


def _relative_to_a_folder(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a name is below an open folder: `shutil.rmtree` has announced the whole of it."""
    return event in ("os.remove", "os.rmdir") and arguments[1] != -1


def limit_growth(num_bytes: int) -> None:
    """Let the process's address space grow by so much from here on, and no further."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + num_bytes, hard))
