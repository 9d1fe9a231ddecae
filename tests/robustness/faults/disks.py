"""Disks that end: a small one of our own to fill, folders that turn read-only, files that stop.

A process may mount what it likes in a mount namespace of its own, and nobody else sees it
(`unshare`, from util-linux). What is mounted there goes with the last process in it.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

_FILLER = ".filler"


def namespace() -> list[str]:
    """Return what to begin a command with so that it may mount, or nothing if that cannot be."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    prefix = [unshare, "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    trial = [*prefix, "sh", "-c", "mount -t tmpfs tmpfs /mnt && mount --bind /mnt /mnt"]
    done = subprocess.run(trial, capture_output=True, check=False)
    return prefix if done.returncode == 0 else []


def mount_small_disk(folder: Path, megabytes: int) -> None:
    """Mount a disk of so many megabytes, in memory, on a folder."""
    _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder)


def fill(disk: Path, left: int) -> None:
    """Take all the room on a disk but for `left` bytes; a file of it can be given back."""
    status = os.statvfs(disk)
    with (disk / _FILLER).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, status.f_bavail * status.f_frsize - left))


def make_room(disk: Path) -> None:
    """Give back what `fill` took, if it took anything."""
    (disk / _FILLER).unlink(missing_ok=True)


def limit_files(size: int) -> None:
    """Let no file of this process grow beyond so many bytes: the write fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def make_read_only(folder: Path) -> None:
    """Let nobody write into a folder; files that are open stay as they are."""
    _run("mount", "--bind", folder, folder)
    _run("mount", "-o", "remount,bind,ro", folder)


def make_writable(folder: Path) -> None:
    """Undo `make_read_only`, if it was done."""
    with suppress(subprocess.CalledProcessError):
        _run("umount", "--quiet", folder)


def _run(*command: str | Path) -> None:
    subprocess.run([*map(str, command)], check=True, stderr=subprocess.DEVNULL)
