"""Find names of users and owners that may not be one person each; private output."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from fedsim.data.preparation.users import one_form
from fedsim.data.sources.names import MISSING
from fedsim.data.store import TokenStore
from fedsim.data.store.manifest import OWNERS, USERS

_ROUNDED = re.compile(r"[+-]?\d(\.\d+)?e\+\d+")
_EXAMPLES, _LONGEST = 3, 40

ONE_SPELLING = '{ step = "user-name", transform = "one-spelling" }'


class Doubt(NamedTuple):
    """Doubtful names of one kind.

    Attributes:
        kind: "alike", "missing", "header" or "rounded".
        num_names: number of such names.
        examples: at most three; for "alike", similar names joined by "=".
    """

    kind: str
    num_names: int
    examples: list[str]

    @property
    def sentence(self) -> str:
        """The kind of names, their number, examples and a cure."""
        what, cure = _KINDS[self.kind]
        return f"{what}: {self.num_names:,} names, such as {', '.join(self.examples)}; {cure}"


_KINDS = {
    "alike": (
        "names that differ only in case, Unicode form, spaces, a final .0 or the form of an "
        "e-mail address",
        "if two are one person, that person's ε is larger than the stated one: add "
        f"{ONE_SPELLING} to data.preparation",
    ),
    "missing": (
        "names that may mean that a name is missing",
        "all texts with such a name count as one person's: empty these cells to drop their rows",
    ),
    "header": (
        "names that equal the header of their column",
        "files were joined with their headers: remove these rows",
    ),
    "rounded": (
        "names that are numbers in scientific notation",
        "a spreadsheet rounded them, so several people may share one name: export the column as "
        "text",
    ),
}


def doubtful_names(store: TokenStore) -> list[Doubt]:
    """Return the doubtful names among all users and owners of a store, by kind."""
    header = store.manifest.get("user_column")
    groups: dict[str, list[str]] = defaultdict(list)
    for name in _names(store):
        groups[one_form(name)].append(name)
    alike = [names for names in groups.values() if len(names) > 1]
    doubts = []
    if alike:
        examples = [" = ".join(map(_shown, names[:_EXAMPLES])) for names in alike[:_EXAMPLES]]
        doubts.append(Doubt("alike", sum(map(len, alike)), examples))
    named = [(form, name) for form, names in groups.items() for name in names]
    other_kinds = {
        "missing": [name for form, name in named if form in MISSING],
        "header": [name for _, name in named if name == header],
        "rounded": [name for form, name in named if _ROUNDED.fullmatch(form)],
    }
    return doubts + [
        Doubt(kind, len(names), [_shown(name) for name in names[:_EXAMPLES]])
        for kind, names in other_kinds.items()
        if names
    ]


def _names(store: TokenStore) -> Iterator[str]:
    for path in (store.path / USERS, store.path / OWNERS):
        if path.exists():
            with path.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)


def _shown(name: str) -> str:
    """Return a name in ASCII, with other characters escaped, shortened."""
    return ascii(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…")
