"""Mutants are what they say, code is exchanged in place, accepted survivors still stand there.

Whether tests notice the mutants is asked by `python -m tests.mutation mutants`.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutation.forked import ROOT
from tests.mutation.operators import mutants
from tests.mutation.survey import Result, Survivor, accepted, load, merged, page, save
from tests.mutation.targets import TARGETS
from tests.mutation.warm import exchange

SOURCE = '''"""A docstring is left alone."""
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

LIMIT = 2.0


class Asked(Protocol):
    width: int = 3


@dataclass(frozen=True)
class Box:
    side: float = 1.5

    @property
    def area(self) -> float:
        return self.side**2

    @cached_property
    def fits(self) -> bool:
        return self.area <= LIMIT

    @staticmethod
    def check(side: float) -> None:
        if not side > 0.0:
            raise ValueError("side: " + "wrong")


def least(values: list[float]) -> float:
    """Return the least, or nothing's."""
    return min(*values, 3.0)
'''


def test_every_kind_of_mutant_and_nothing_that_is_left_alone() -> None:
    found = {mutant.change: mutant for mutant in mutants(SOURCE)}
    expected = {
        "2.0 → 4.0",
        "1.5 → 3.0",
        "return self.side ** 2 → return None",
        "self.side ** 2 → self.side * 2",
        "2 → 3",
        "return self.area <= LIMIT → return None",
        "self.area <= LIMIT → self.area < LIMIT",
        "self.area <= LIMIT → self.area > LIMIT",
        "not side > 0.0 → side > 0.0",
        "side > 0.0 → side >= 0.0",
        "side > 0.0 → side <= 0.0",
        "0.0 → 1.0",
        "raise ValueError('side: ' + 'wrong') → nothing",
        "return min(*values, 3.0) → return None",
        "3.0 → 6.0",
    }
    assert found.keys() == expected
    assert [m.change for m in found.values() if not m.in_function] == ["2.0 → 4.0", "1.5 → 3.0"]
    assert found["0.0 → 1.0"].line == "if not side > 0.0:"
    assert found["2.0 → 4.0"].number == SOURCE[: SOURCE.index("LIMIT")].count("\n") + 1
    assert len({ast.dump(mutant.tree) for mutant in found.values()}) == len(expected)


def test_arguments_are_swapped_and_left_out_and_calls_taken_from_their_chain() -> None:
    changes = {mutant.change for mutant in mutants("f(a, b, c=d)\ng(e).h()\nx += y\n")}
    assert changes == {
        "f(a, b, c=d) → nothing",
        "f(a, b, c=d) → f(b, a, c=d)",
        "f(a, b, c=d) → f(a, b)",
        "g(e).h() → nothing",
        "g(e).h() → g(e)",
        "x += y → x -= y",
        "x += y → nothing",
    }


def test_code_is_exchanged_behind_whoever_has_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "boxes.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("boxes", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "boxes", module)
    spec.loader.exec_module(module)
    box, check, least = module.Box(), module.Box.check, module.least
    wanted: dict[str, Callable[[], bool]] = {
        "self.side ** 2 → self.side * 2": lambda: box.area == 3.0,
        "self.area <= LIMIT → self.area > LIMIT": lambda: module.Box(2.0).fits,
        "side > 0.0 → side <= 0.0": lambda: check(-1.0) is None,
        "3.0 → 6.0": lambda: least([7.0]) == 6.0,
    }
    for mutant in mutants(SOURCE):
        if seen := wanted.pop(mutant.change, None):
            exchange(module, mutant.tree)
            assert seen(), mutant.change
    assert not wanted
    exchange(module, ast.parse(SOURCE))
    assert (box.area, least([7.0])) == (2.25, 3.0)


def test_accepted_survivors_stand_in_their_files_and_say_why() -> None:
    for (file, line, change), reason in accepted().items():
        assert file in TARGETS, file
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        assert line in {one.strip() for one in lines}, f"{file}: {line}"
        assert " → " in change
        assert len(reason) > 10, f"{file}: {line}"


def test_targets_are_there() -> None:
    for file, tests in TARGETS.items():
        assert all((ROOT / name).is_file() for name in (file, *tests.all)), file


def test_the_page_says_who_has_no_reason(tmp_path: Path) -> None:
    known = Survivor("a.py", 3, "x = 1 | y", "1 → 2")
    new = Survivor("a.py", 4, "z = 5", "5 → 6")
    results = [Result("a.py", 9, 1, (known, new), 2.0), Result("b.py", 4, 0, (), 1.0)]
    save(results[:1], tmp_path / "results.json")
    save(results[1:], tmp_path / "results.json")
    assert load(tmp_path / "results.json") == results
    fixed = merged(results[0], Result("a.py", 1, 0, (), 1.0), "z =")
    assert (fixed.survivors, fixed.mutants) == ((known,), 9)
    text = page(results, {known.key: "a name"})
    assert "| `a.py` | 9 | 7 | 1 | 2 | 1 |" in text
    assert "| all | 13 | 11 | 1 | 2 | 1 |" in text
    assert "| `a.py`: `x = 1 \\| y` | `1 → 2` | a name |" in text
    assert "| `a.py`: `z = 5` | `5 → 6` | ? |" in text
