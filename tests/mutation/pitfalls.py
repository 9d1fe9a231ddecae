"""Protections against known privacy bugs, taken away one by one: tests must fail without them.

`pitfalls.toml` lists the bugs and, for each one, undos: product code that occurs once, the code
without the protection, and the tests that fail then.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.mutation.forked import OPTIONS, ROOT, in_a_child, scratch

PRODUCT = ("fedsim", "strategies", "clients")
_COPIED = (*PRODUCT, "experiments", "tests", "docs", "pyproject.toml")
_SECONDS = 3600.0
_FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)
_HEAD = """# Privacy bugs in other projects, and the tests that would fail here

`python -m tests.mutation pitfalls` removes one protection after another, in a copy of the tree, and
checks that the tests named here fail. `pitfalls.toml` names the code of each protection. This table
is written by `python -m tests.mutation table`. `mutmut run` changes the files that the guarantee
rests on (`[tool.mutmut]` in `pyproject.toml`); `mutmut results` lists changes that no test noticed.

| what went wrong elsewhere | seen in | test here |
|---|---|---|
"""


@dataclass(frozen=True)
class Undo:
    """How to take a protection away.

    Attributes:
        old: text that occurs exactly once in the product.
        new: the text without the protection.
        tests: names of the tests that must fail then, all of them.
    """

    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Pitfall:
    """A bug that shipped elsewhere: its description, where it was seen, the undos."""

    name: str
    seen_in: tuple[str, ...]
    undos: tuple[Undo, ...]


def read() -> list[Pitfall]:
    """Return the pitfalls of the list."""
    path = ROOT / "tests" / "mutation" / "pitfalls.toml"
    return [
        Pitfall(
            item["name"],
            tuple(item.get("seen_in", ())),
            tuple(Undo(old, new, tuple(tests)) for old, new, *tests in item["undo"]),
        )
        for item in tomllib.loads(path.read_text(encoding="utf-8"))["pitfall"]
    ]


def table(pitfalls: Sequence[Pitfall]) -> str:
    """Return the text of `tests/mutation/README.md`."""
    rows = []
    for pitfall in pitfalls:
        names = dict.fromkeys(f"`{test}`" for undo in pitfall.undos for test in undo.tests)
        rows.append(
            f"| {pitfall.name} | {', '.join(pitfall.seen_in) or '–'} | {', '.join(names)} |"
        )
    return _HEAD + "\n".join(rows) + "\n"


@cache
def product(root: Path) -> dict[Path, str]:
    """Return the texts of the product's files."""
    files = (path for name in PRODUCT for path in (root / name).rglob("*.py"))
    own = {path for path in files if not any(part.is_symlink() for part in path.parents)}
    return {path.relative_to(root): path.read_text(encoding="utf-8") for path in sorted(own)}


def place(undo: Undo, root: Path = ROOT) -> Path:
    """Return the file that holds the protection; a ValueError unless the text occurs once."""
    found = [path for path, text in product(root).items() for _ in range(text.count(undo.old))]
    if len(found) != 1:
        raise ValueError(f"{undo.old!r} occurs {len(found)} times: {[*map(str, found)]}")
    return found[0]


@cache
def _files_of_tests() -> dict[str, str]:
    """Map names of tests, `Class::name` for methods, to their files; ids of pytest are unique."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
            for part in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(part, ast.FunctionDef):
                    found[prefix + part.name] = str(path.relative_to(ROOT))
    return found


def ids(tests: Sequence[str]) -> list[str]:
    """Return pytest's ids of tests by name; a KeyError for a name that no test has."""
    return [f"{_files_of_tests()[name]}::{name}" for name in tests]


def all_tests(pitfalls: Sequence[Pitfall]) -> list[str]:
    """Return the ids of all tests that are named."""
    return sorted({one for p in pitfalls for undo in p.undos for one in ids(undo.tests)})


def survivors(undo: Undo, tree: Path) -> list[str]:
    """Return the tests that pass without the protection; the tree is restored afterwards."""
    path = tree / place(undo, tree)
    before = path.read_text(encoding="utf-8")
    _write(path, before.replace(undo.old, undo.new))
    try:
        failed = failures(ids(undo.tests), tree)
    finally:
        _write(path, before)
    return [test for test in ids(undo.tests) if test not in failed]


def _write(path: Path, text: str) -> None:
    """Write a file a second younger than before: bytecode is looked up by size and second."""
    second = int(path.stat().st_mtime) + 1
    path.write_text(text, encoding="utf-8")
    os.utime(path, (second, second))


def failures(tests: Sequence[str], tree: Path) -> set[str]:
    """Run tests of a tree in a forked process that has imported nothing of ours."""

    def act() -> int:
        import pytest  # noqa: PLC0415  (slow)

        os.chdir(tree)
        os.environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        sys.path[:] = [str(tree), *(path for path in sys.path if Path(path) != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]  # the tree has tests of its own
        options = ["-q", *OPTIONS, "--tb=no", "-rfE", f"--basetemp={folder / 'tmp'}"]
        return int(pytest.main([*options, *tests]))

    with scratch() as folder:
        status = in_a_child(act, folder, _SECONDS)
        output = (folder / "output.txt").read_text(errors="replace")
    if status not in (0, 1):  # interrupted, too slow, or no such test
        raise RuntimeError(f"pytest ended with {status}:\n{output[-2000:]}")
    return set(_FAILED.findall(output))


def try_all(pitfalls: Sequence[Pitfall]) -> Iterator[tuple[Pitfall, Undo, list[str]]]:
    """Take away one protection after another, and yield the tests that then passed."""
    with scratch() as folder:
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "*.png")
                shutil.copytree(source, folder / name, ignore=ignore, symlinks=True)
            else:
                shutil.copy(source, folder / name)
        if broken := failures(all_tests(pitfalls), folder):
            raise RuntimeError(f"with all protections in place these fail: {sorted(broken)}")
        for pitfall in pitfalls:
            for undo in pitfall.undos:
                yield pitfall, undo, survivors(undo, folder)
