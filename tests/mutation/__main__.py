"""`python -m tests.mutation pitfalls|table [WORD]...`: remove protections, or write README.md."""

from __future__ import annotations

import sys

import typer

from tests.mutation.forked import ROOT, warm_up
from tests.mutation.pitfalls import all_tests, place, read, table, try_all


def main(command: str, *words: str) -> int:
    """Return 1 if a protection can go without a failing test; words select pitfalls by name."""
    if command == "table":
        page = ROOT / "tests" / "mutation" / "README.md"
        page.write_text(table(read()), encoding="utf-8")
        return 0
    chosen = [p for p in read() if not words or any(word in p.name for word in words)]
    tried = survived = 0
    warm_up(all_tests(chosen))
    for pitfall, undo, passed in try_all(chosen):
        tried += 1
        survived += bool(passed)
        verdict = f"SURVIVED {', '.join(passed)}" if passed else "caught"
        typer.echo(f"{verdict}: {pitfall.name} [{place(undo)}]")
    typer.echo(f"{len(chosen)} pitfalls, {tried} protections taken away, {survived} unseen")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
