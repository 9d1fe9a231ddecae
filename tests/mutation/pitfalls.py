"""Peers' privacy bugs, one by one: each protection against them is taken away, and tests must fail.

`tests/mutation/pitfalls.toml` has them: what went wrong, where it was seen, and for each protection
a piece of the code, what stands in its place without the protection, and the tests that fail then.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.forked import OPTIONS, ROOT, in_a_child, scratch

_COPIED = ("fedsim", "strategies", "clients", "experiments", "tests", "docs", "pyproject.toml")
_SECONDS = 3600.0
_FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)


@dataclass(frozen=True)
class Undo:
    """A protection and how to take it away.

    Attributes:
        file: path in the repository.
        old: text that occurs in it exactly once.
        new: what stands there without the protection.
        tests: ids of the tests that must fail then, all of them.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Pitfall:
    """A bug that shipped elsewhere.

    Attributes:
        name: what went wrong.
        seen_in: where, such as "opacus#571".
        said: what the table says before the tests, in Markdown; may be empty.
        undos: the protections here.
    """

    name: str
    seen_in: tuple[str, ...]
    said: str
    undos: tuple[Undo, ...]

    def row(self) -> str:
        """Return its row of the table in `docs/privacy.md`."""
        ids = [test for undo in self.undos for test in undo.tests]
        names = dict.fromkeys(f"`{test.rpartition('::')[2]}`" for test in ids)
        cell = "; ".join(filter(None, [self.said, ", ".join(names)]))
        return f"| {self.name} | {', '.join(self.seen_in) or '–'} | {cell} |"


def read(path: Path = ROOT / "tests" / "mutation" / "pitfalls.toml") -> list[Pitfall]:
    """Return the pitfalls of a file."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Pitfall(
            name=item["name"],
            seen_in=tuple(item.get("seen_in", ())),
            said=item.get("said", ""),
            undos=tuple(
                Undo(undo["file"], undo["old"], undo["new"], tuple(undo["tests"]))
                for undo in item["undo"]
            ),
        )
        for item in raw["pitfall"]
    ]


def table(pitfalls: Sequence[Pitfall]) -> str:
    """Return the table of `docs/privacy.md`."""
    head = "| what went wrong elsewhere | seen in | test here |\n|---|---|---|\n"
    return head + "".join(f"{pitfall.row()}\n" for pitfall in pitfalls)


def copied(folder: Path) -> Path:
    """Copy the code and its tests into `folder` and return where they are."""
    tree = folder / "tree"
    tree.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.png", "*.pyc")
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=ignore, symlinks=True)
        else:
            shutil.copy(source, tree / name)
    return tree


def survivors(undo: Undo, tree: Path) -> list[str]:
    """Return the tests that pass without the protection, in a copy that is as it was afterwards.

    Raises:
        ValueError: the text to replace does not occur exactly once.
    """
    path = tree / undo.file
    before = path.read_text(encoding="utf-8")
    if before.count(undo.old) != 1:
        raise ValueError(f"{undo.file}: {undo.old!r} occurs {before.count(undo.old)} times")
    _write(path, before.replace(undo.old, undo.new))
    try:
        failed = _failed(undo.tests, tree)
    finally:
        _write(path, before)
    return [test for test in undo.tests if test not in failed]


def _write(path: Path, text: str) -> None:
    """Write a file as if a second after what it replaces.

    Python takes bytecode for that of a file of the same size and second: that of the undo before.
    """
    second = int(path.stat().st_mtime) + 1
    path.write_text(text, encoding="utf-8")
    os.utime(path, (second, second))


def _failed(tests: Sequence[str], tree: Path) -> set[str]:
    """Run tests of a tree in a process that has imported nothing of ours, or of another tree."""

    def act() -> int:
        import pytest  # noqa: PLC0415  (slow)

        os.chdir(tree)
        os.environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        sys.path[:] = [str(tree), *(path for path in sys.path if Path(path) != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]  # the tests of the tree, not those that this tool lies among
        options = ["-q", *OPTIONS, "--tb=no", "-rfE", f"--basetemp={folder / 'tmp'}"]
        return int(pytest.main([*options, *tests]))

    with scratch() as folder:
        status = in_a_child(act, folder, _SECONDS)
        output = (folder / "output.txt").read_text(errors="replace")
    if status not in (0, 1):  # interrupted, too slow, or no such test
        raise RuntimeError(f"pytest ended with {status}:\n{output[-2000:]}")
    return set(_FAILED.findall(output))


def chosen_tests(pitfalls: Sequence[Pitfall]) -> list[str]:
    """Return the ids of all tests that are named."""
    return sorted({test for pitfall in pitfalls for undo in pitfall.undos for test in undo.tests})


def try_all(pitfalls: Sequence[Pitfall], folder: Path) -> Iterator[tuple[Pitfall, Undo, list[str]]]:
    """Take away one protection after another, and yield what then passed and should not have."""
    tree = copied(folder)
    if broken := _failed(chosen_tests(pitfalls), tree):
        raise RuntimeError(f"with all protections in place these fail: {sorted(broken)}")
    for pitfall in pitfalls:
        for undo in pitfall.undos:
            yield pitfall, undo, survivors(undo, tree)
