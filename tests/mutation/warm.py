"""Many mutants in forks of one pytest session, whose tests are collected and have run once.

For mutants in the body of a function: its code is exchanged where it is, so that nothing has to be
imported again. That costs a tenth of `forked.judge`. What has been computed and kept before the
exchange (a session's fixtures, caches) is not computed again, so only "caught" is final; who
survives here is judged again from the import on.
"""

from __future__ import annotations

import ast
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutation.forked import OPTIONS, Verdict, in_a_child, patient_hypothesis, scratch

if TYPE_CHECKING:
    import pytest

_PATIENCE = 3600.0
_LEAST_SECONDS, _TIMES = 30.0, 5.0


def caught(file: str, trees: Mapping[int, ast.Module], tests: Sequence[str]) -> dict[int, Verdict]:
    """Return which mutants a test noticed, by their key: "caught" or "too slow".

    Raises:
        RuntimeError: the tests fail as they are, or when they run for a second time.
    """
    module = file.removesuffix(".py").replace("/", ".")
    with scratch() as folder:
        plugin = _Loop(module, trees, folder)

        def act() -> int:
            import pytest  # noqa: PLC0415  (slow)

            patient_hypothesis()
            options = ["-q", "--tb=short", *OPTIONS, f"--basetemp={folder / 'tmp'}"]
            return int(pytest.main([*options, *tests], plugins=[plugin]))

        status = in_a_child(act, folder, _PATIENCE)
        found = folder / "verdicts.txt"
        if status != 0 or not found.exists():
            output = (folder / "output.txt").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{file}: its tests fail as it is:\n{output}")
        lines = [line.split(" ", 1) for line in found.read_text().splitlines()]
    known: dict[str, Verdict] = {"caught": "caught", "too slow": "too slow"}
    return {int(key): known[verdict] for key, verdict in lines if verdict in known}


class _Loop:
    """A pytest plugin: runs everything once, and once more in a fork for each mutant."""

    def __init__(self, module: str, trees: Mapping[int, ast.Module], folder: Path) -> None:
        self._module = module
        self._trees = trees
        self._folder = folder

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take the place of pytest's own loop."""
        began = time.monotonic()
        if not _run(session):
            return True
        limit = max(_LEAST_SECONDS, _TIMES * (time.monotonic() - began))
        if in_a_child(lambda: int(not _run(session)), self._folder, limit) != 0:
            session.testsfailed += 1  # a second time, and unchanged: not to be told from a mutant
            return True
        with (self._folder / "verdicts.txt").open("w") as verdicts:
            for key, tree in self._trees.items():
                act = partial(self._mutated, session, tree)
                status = in_a_child(act, self._folder, limit)
                verdict = "too slow" if status is None else "caught" if status else "survived"
                verdicts.write(f"{key} {verdict}\n")
                verdicts.flush()
        return True

    def _mutated(self, session: pytest.Session, tree: ast.Module) -> int:
        exchange(sys.modules[self._module], tree)
        return int(not _run(session))


def _run(session: pytest.Session) -> bool:
    """Run tests until one fails; fixtures of the session stay set up. Return whether all passed."""
    items = session.items
    for item, following in zip(items, [*items[1:], items[0]], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return False
    return True


def exchange(module: types.ModuleType, tree: ast.Module) -> None:
    """Give every function of a loaded module the code that it has in a tree."""
    namespace = types.ModuleType(module.__name__)
    namespace.__file__ = module.__file__
    exec(compile(tree, str(module.__file__), "exec"), namespace.__dict__)  # noqa: S102
    before, after = dict(_functions(module)), dict(_functions(namespace))
    for name, function in after.items():
        before[name].__code__ = function.__code__


def _functions(owner: object, path: str = "") -> Iterator[tuple[str, types.FunctionType]]:
    """Yield functions and methods by their paths, those behind properties too."""
    for name, value in vars(owner).items():
        inner = value
        if isinstance(value, property):
            inner = value.fget
        elif isinstance(value, cached_property):
            inner = value.func
        elif isinstance(value, classmethod | staticmethod):
            inner = value.__func__
        inner = getattr(inner, "__wrapped__", inner)
        home = getattr(owner, "__module__", None) or getattr(owner, "__name__", None)
        if getattr(inner, "__module__", None) != home:
            continue
        if isinstance(inner, types.FunctionType):
            yield f"{path}{name}", inner
        elif isinstance(inner, type) and "." not in inner.__qualname__:
            yield from _functions(inner, f"{path}{name}.")
