"""`python -m tests.mutation pitfalls|table`: take protections away, and the table of them."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import typer

from tests.mutation.forked import warm_up
from tests.mutation.pitfalls import chosen_tests, read, table, try_all


def main() -> int:
    """Return 1 if a protection can go without a test that fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    pitfalls = commands.add_parser("pitfalls", help="take away the protections of pitfalls.toml")
    pitfalls.add_argument("words", nargs="*", help="only those with one of these in their name")
    commands.add_parser("table", help="print the table of docs/privacy.md")
    arguments = parser.parse_args()
    if arguments.command == "pitfalls":
        return _pitfalls(arguments.words)
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


if __name__ == "__main__":
    sys.exit(main())
