"""`python -m tests.mutation pitfalls|mutants|table`: what the tests see, and tables of it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import typer

from tests.mutation.forked import ROOT, Verdict, warm_up
from tests.mutation.operators import Mutant
from tests.mutation.pitfalls import chosen_tests, read, table, try_all
from tests.mutation.survey import accepted, load, merged, page, save, survey
from tests.mutation.targets import TARGETS

_RESULTS, _PAGE = ROOT / "docs" / "mutation.json", ROOT / "docs" / "mutation.md"


def main() -> int:
    """Return 1 if a protection can go, or a mutant live, without a test that fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    pitfalls = commands.add_parser("pitfalls", help="take away the protections of pitfalls.toml")
    pitfalls.add_argument("words", nargs="*", help="only those with one of these in their name")
    changed = commands.add_parser("mutants", help="try all mutants of the files")
    changed.add_argument("files", nargs="*", help="by default all")
    changed.add_argument("--lines", default="", help="only lines that contain this")
    once = "a first look: who survives in a warm session is not tried again from the import on"
    changed.add_argument("--once", action="store_true", help=once)
    commands.add_parser("page", help="write docs/mutation.md from docs/mutation.json")
    commands.add_parser("table", help="print the table of docs/privacy.md")
    arguments = parser.parse_args()
    if arguments.command == "pitfalls":
        return _pitfalls(arguments.words)
    if arguments.command == "mutants":
        return _mutants(arguments.files or list(TARGETS), arguments.lines, arguments.once)
    if arguments.command == "page":
        _PAGE.write_text(page(load(_RESULTS), accepted()), encoding="utf-8")
        return 0
    typer.echo(table(read()), nl=False)
    return 0


def _pitfalls(words: list[str]) -> int:
    chosen = [p for p in read() if not words or any(word in p.name for word in words)]
    tried = survived = 0
    warm_up(chosen_tests(chosen))
    with tempfile.TemporaryDirectory() as folder:
        for pitfall, undo, passed in try_all(chosen, Path(folder)):
            tried += 1
            survived += bool(passed)
            what = f"SURVIVED {', '.join(passed)}" if passed else "caught"
            typer.echo(f"{what}: {pitfall.name} [{undo.file}]")
    typer.echo(f"{len(chosen)} pitfalls, {tried} protections taken away, {survived} unseen")
    return int(survived > 0)


def _mutants(files: list[str], lines: str, once: bool) -> int:
    warm_up(sorted({test for file in files for test in TARGETS[file].all}))
    reasons, unexplained = accepted(), 0

    def tell(mutant: Mutant, verdict: Verdict) -> None:
        if verdict == "survived":
            known = "accepted" if (file, mutant.line, mutant.change) in reasons else "SURVIVED"
            typer.echo(f"{known}: {file}:{mutant.number}: {mutant.change}")

    for file in files:
        result = survey(file, TARGETS[file], tell, only=lines, agreed=reasons, once=once)
        unexplained += sum(one.key not in reasons for one in result.survivors)
        counts = f"{result.mutants} mutants, {result.caught} caught ({result.too_slow} by time)"
        typer.echo(f"{file}: {counts}, {result.seconds:.0f} s")
        before = {one.file: one for one in load(_RESULTS)} if _RESULTS.exists() else {}
        if not lines or file in before:
            save([merged(before[file], result, lines) if lines else result], _RESULTS)
            _PAGE.write_text(page(load(_RESULTS), reasons), encoding="utf-8")
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
