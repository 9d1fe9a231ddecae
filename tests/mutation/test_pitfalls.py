"""The list of privacy bugs is true: its code and tests exist, and the command sees a survivor.

`python -m tests.mutation pitfalls` checks that the tests fail without the protections.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.forked import ROOT
from tests.mutation.pitfalls import Undo, ids, place, read, table

PITFALLS = read()
UNDOS = [undo for pitfall in PITFALLS for undo in pitfall.undos]


@pytest.mark.parametrize("undo", UNDOS, ids=lambda undo: undo.tests[0])
def test_every_undo_changes_code_and_names_tests(undo: Undo) -> None:
    text = (ROOT / place(undo)).read_text(encoding="utf-8")
    changed = ast.parse(text.replace(undo.old, undo.new))
    assert ast.dump(changed) != ast.dump(ast.parse(text))
    assert ids(undo.tests)


def test_the_table_is_written() -> None:
    page = (ROOT / "tests" / "mutation" / "README.md").read_text(encoding="utf-8")
    assert page == table(PITFALLS)  # python -m tests.mutation table


def test_a_survivor_is_seen_also_after_an_undo_of_the_same_size_and_second(tmp_path: Path) -> None:
    (tmp_path / "fedsim").mkdir()
    (tmp_path / "fedsim" / "two.py").write_text("TWO = 1 + 1\n")
    test = "from fedsim.two import TWO\n\n\ndef test_it():\n    assert TWO == 2\n"
    (tmp_path / "test_two.py").write_text(test)
    undos = [Undo("1 + 1", new, ("test_it",)) for new in ("0 + 3", "0 + 2", "4 + 0", "2")]
    code = (
        "from pathlib import Path; from tests.mutation import pitfalls;"
        "pitfalls.ids = lambda tests: [f'test_two.py::{name}' for name in tests];"
        f"tree = Path({str(tmp_path)!r}); Undo = pitfalls.Undo;"
        f"print([pitfalls.survivors(undo, tree) for undo in {undos!r}])"
    )
    command = [sys.executable, "-c", code]  # a process of its own, as it forks
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=env)
    passed = ["test_two.py::test_it"]
    assert ast.literal_eval(done.stdout) == [[], passed, [], passed]


def test_the_command_takes_a_protection_away_and_sees_its_tests_fail() -> None:
    command = [sys.executable, "-m", "tests.mutation", "pitfalls", "low bits of the sum"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 pitfalls, 1 protections taken away, 0 unseen" in done.stdout
