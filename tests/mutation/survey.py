"""All mutants of some files: who was caught, who survived, and whether that was agreed to.

A survivor that changes no guarantee stands in `tests/mutation/survivors.toml` with the reason; the
key is file, line and change, so that it holds while other lines move.
"""

from __future__ import annotations

import ast
import json
import time
import tomllib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from tests.mutation.forked import ROOT, Verdict, judge
from tests.mutation.operators import Mutant, mutants
from tests.mutation.targets import Tests
from tests.mutation.warm import caught

ACCEPTED = ROOT / "tests" / "mutation" / "survivors.toml"
_PATIENCE = 900.0  # seconds for a file of tests without a mutant
_LEAST_SECONDS, _TIMES = 60.0, 5.0  # for one with a mutant, and of what it takes without

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test noticed.

    Attributes:
        file: path in the repository.
        number: of the line.
        line: its text, stripped.
        change: what was changed.
    """

    file: str
    number: int
    line: str
    change: str

    @property
    def key(self) -> Key:
        """What it is known by in the file of accepted survivors."""
        return self.file, self.line, self.change


@dataclass(frozen=True)
class Result:
    """What became of a file's mutants.

    Attributes:
        file: path in the repository.
        mutants: how many were tried.
        too_slow: how many of the caught ones did not end in time.
        survivors: those that no test noticed.
        seconds: of wall clock.
    """

    file: str
    mutants: int
    too_slow: int
    survivors: tuple[Survivor, ...]
    seconds: float

    @property
    def caught(self) -> int:
        """How many some test noticed."""
        return self.mutants - len(self.survivors)


def accepted(path: Path = ACCEPTED) -> dict[Key, str]:
    """Return the reason of each accepted survivor."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        (item["file"], item["line"], change): item["reason"]
        for item in raw.get("survivor", [])
        for change in item["changes"]
    }


def survey(
    file: str,
    tests: Tests,
    tell: Callable[[Mutant, Verdict], None],
    *,
    only: str = "",
    agreed: Container[Key] = (),
    once: bool = False,
) -> Result:
    """Try every mutant of a file.

    Those in functions are tried in a warm session, and whoever survives there and was not agreed
    to once more from the import on; the others from the import on to begin with.

    Args:
        file: path in the repository.
        tests: that cover it.
        tell: sees each mutant and what became of it.
        only: mutants of lines that contain this.
        agreed: survivors that need not be tried twice.
        once: try nobody twice, and from the import on with the quick tests only.

    Raises:
        RuntimeError: the tests fail without a mutant.
    """
    source = (ROOT / file).read_text(encoding="utf-8")
    began = time.monotonic()
    chosen = [mutant for mutant in mutants(source) if only in mutant.line]
    verdicts: dict[int, Verdict] = {}
    for some in filter(None, (tests.quick, tests.thorough)):
        left = {i: m.tree for i, m in enumerate(chosen) if m.in_function and i not in verdicts}
        verdicts |= caught(file, left, some) if left else {}
    judges = [_Judge(file, source, test) for test in (tests.quick if once else tests.all)]
    alive = []
    for index, mutant in enumerate(chosen):
        survivor = Survivor(file, mutant.number, mutant.line, mutant.change)
        believed = mutant.in_function and (once or survivor.key in agreed)
        if index not in verdicts and not believed:
            found = (judge_(mutant.tree) for judge_ in judges)
            verdicts[index] = next((one for one in found if one != "survived"), "survived")
        verdict = verdicts.setdefault(index, "survived")
        tell(mutant, verdict)
        if verdict == "survived":
            alive.append(survivor)
    slow = sum(verdict == "too slow" for verdict in verdicts.values())
    return Result(file, len(chosen), slow, tuple(alive), time.monotonic() - began)


@dataclass(frozen=True)
class _Judge:
    """A file of tests, run on one mutant after another, from the import on."""

    file: str
    source: str
    test: str

    def __call__(self, tree: ast.Module) -> Verdict:
        return judge(self.file, tree, self.test, self._limit).verdict

    @cached_property
    def _limit(self) -> float:
        # Compiled as the mutants are: what this alone breaks is not to be counted as caught.
        whole = judge(self.file, ast.parse(self.source), self.test, _PATIENCE)
        if whole.verdict != "survived":
            raise RuntimeError(f"{self.file}: {self.test} fails as it is:\n{whole.output}")
        return max(_LEAST_SECONDS, _TIMES * whole.seconds)


def merged(before: Result, now: Result, only: str) -> Result:
    """Return a file's result in which the lines that contain `only` are as they are now."""
    others = [one for one in before.survivors if only not in one.line]
    alive = sorted([*others, *now.survivors], key=lambda one: one.number)
    return replace(before, survivors=tuple(alive))


def save(results: Sequence[Result], path: Path) -> None:
    """Write results as JSON, beside those of other files that stand there."""
    kept = {result.file: result for result in (load(path) if path.exists() else [])}
    kept |= {result.file: result for result in results}
    found = [asdict(result) for result in kept.values()]
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(path: Path) -> list[Result]:
    """Read what `save` wrote."""
    return [
        Result(**{**item, "survivors": tuple(Survivor(**one) for one in item["survivors"])})
        for item in json.loads(path.read_text(encoding="utf-8"))
    ]


def page(results: Sequence[Result], reasons: Mapping[Key, str]) -> str:
    """Return `docs/mutation.md`."""
    lines = [
        "# Mutants",
        "",
        "`python -m tests.mutation mutants` changes one thing at a time in the files that",
        "the guarantee rests on (a comparison, a number, an operator, an argument, a return value,",
        "a statement) and runs the tests that cover the file. It ends with status 1 if a mutant",
        "survives that `tests/mutation/survivors.toml` gives no reason for. It is not one of the",
        "known tools: mutmut 3.8 leaves out whatever is decorated, and bounds, noise level and",
        "cost are properties here; cosmic-ray starts a process a mutant, which imports torch for",
        "longer than most mutants live.",
        "",
        "| file | mutants | caught | of these by time | survived | without a reason |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        unexplained = sum(one.key not in reasons for one in result.survivors)
        counts = (result.mutants, result.caught, result.too_slow, len(result.survivors))
        lines.append(f"| `{result.file}` | {' | '.join(map(str, (*counts, unexplained)))} |")
    totals = [sum(r.mutants for r in results), sum(r.caught for r in results)]
    totals += [sum(r.too_slow for r in results), sum(len(r.survivors) for r in results)]
    totals.append(sum(one.key not in reasons for r in results for one in r.survivors))
    lines += [f"| all | {' | '.join(map(str, totals))} |", ""]
    lines += [
        "## Survivors",
        "",
        "| where | change | why it changes no guarantee |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{one.file}`: {_code(one.line)} | {_code(one.change)} | {reasons.get(one.key, '?')} |"
        for result in results
        for one in result.survivors
    ]
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Return text as code in a cell of a table."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text.replace('|', chr(92) + '|')}{fence}"
