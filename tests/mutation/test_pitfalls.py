"""The list of peers' bugs stays true: its tests exist, its texts are there, the page has its rows.

Whether they fail without the protections is asked by `python -m tests.mutation pitfalls`,
which takes long; here that its machinery can tell.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.mutation.forked import ROOT
from tests.mutation.pitfalls import Pitfall, Undo, read, table

PITFALLS = read()
UNDOS = [undo for pitfall in PITFALLS for undo in pitfall.undos]


dumped = cache(lambda text: ast.dump(ast.parse(text)))


def defined(path: Path) -> set[str]:
    """Every test of a file, as pytest calls it."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inner = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            found |= {f"{node.name}::{part.name}" for part in inner}
    return found


@pytest.mark.parametrize("pitfall", PITFALLS, ids=lambda pitfall: pitfall.name)
def test_every_named_test_exists_and_every_undo_would_undo_something(pitfall: Pitfall) -> None:
    assert pitfall.undos
    for undo in pitfall.undos:
        text = (ROOT / undo.file).read_text(encoding="utf-8")
        assert text.count(undo.old) == 1, undo.old
        assert ast.dump(ast.parse(text.replace(undo.old, undo.new))) != dumped(text)
        assert undo.tests
        for test in undo.tests:
            file, _, name = test.partition("::")
            assert name in defined(ROOT / file), test


def test_no_undo_stands_there_twice() -> None:
    assert len({(undo.file, undo.old) for undo in UNDOS}) == len(UNDOS)
    assert len({pitfall.name for pitfall in PITFALLS}) == len(PITFALLS) >= 20


def test_the_privacy_page_has_exactly_these_rows() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    rows = table(PITFALLS)
    assert rows in page  # python -m tests.mutation table
    rest = page.split(rows)[1]
    assert not rest.startswith("|")


def test_a_survivor_is_told_from_what_is_caught(tmp_path: Path) -> None:
    """Also where the undo before had the same length, within the same second."""
    (tmp_path / "two.py").write_text("TWO = 1 + 1\n")
    test = "import two\n\n\ndef test_it():\n    assert two.TWO == 2\n"
    (tmp_path / "test_two.py").write_text(test)
    undos = [
        Undo("two.py", "1 + 1", new, ("test_two.py::test_it",))
        for new in ("0 + 3", "0 + 2", "4 + 0", "2")
    ]
    code = (
        "from pathlib import Path; from tests.mutation.pitfalls import Undo, survivors;"
        f"print([survivors(undo, Path({str(tmp_path)!r})) for undo in {undos!r}])"
    )
    command = [sys.executable, "-c", code]  # of its own: it forks processes that import tests
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    passed = list(undos[0].tests)
    assert ast.literal_eval(done.stdout) == [[], passed, [], passed]
    assert (tmp_path / "two.py").read_text() == "TWO = 1 + 1\n"


def test_the_command_takes_a_protection_away_and_sees_its_tests_fail() -> None:
    command = [sys.executable, "-m", "tests.mutation", "pitfalls", "the low bits of the sum"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("caught: ") == 1
    assert "1 pitfalls, 1 protections taken away, 0 unseen" in done.stdout
