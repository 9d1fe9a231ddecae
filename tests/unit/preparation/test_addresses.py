"""A cell of an e-mail's receivers: all addresses in it and nothing else, or none at all."""

from __future__ import annotations

import re
from time import process_time

import numpy as np
import pytest

from fedsim.data.preparation.emails import addresses

READ: dict[object, list[str]] = {
    "ann@x.org": ["ann@x.org"],
    "Ann.B@X.Org, bob@y.org; cy@z": ["ann.b@x.org", "bob@y.org", "cy@z"],
    "ann@x.org,\n\tbob@y.org,": ["ann@x.org", "bob@y.org"],
    "Ann Smith <ann@x.org>, <bob@y.org>": ["ann@x.org", "bob@y.org"],
    '"Smith, Ann" <ann@x.org>, Bob O\'Brien <b@y.org>': ["ann@x.org", "b@y.org"],
    "Zoë (work) <zoe@x.org>": ["zoe@x.org"],
    "ann@x.org (Ann Smith)": ["ann@x.org"],
    "'ann@x.org', o'brien@x.org": ["ann@x.org", "o'brien@x.org"],
    "m..presto@enron.com": ["m..presto@enron.com"],
    "": [],
    None: [],
}
NOT_READ = [
    "ann@x.org carol",
    "Carol\nann@x.org",
    "ann@x.org bob@y.org",
    "ann@x.org,, bob@y.org",
    "ann@x.org.",
    "ann@x..org",
    "'ann@x.org",
    "ann@x.org'",
    "['ann@x.org', 'bob@y.org']",
    "ann@[10.0.0.1]",
    '"ann b"@x.org',
    "Team: ann@x.org, bob@y.org;",
    "undisclosed-recipients:;",
    "Ann <ann@x.org> and bob",
    "bob@y.org <ann@x.org>",
    "zoë@x.org",
    3,
]


@pytest.mark.parametrize("cell", READ)
def test_what_is_read(cell: object) -> None:
    assert addresses(cell) == READ[cell]
    assert addresses([cell] if cell is not None else []) == READ[cell]


@pytest.mark.parametrize("cell", NOT_READ)
def test_what_is_not_read(cell: object) -> None:
    """Somebody in it would own the e-mail under another name, or not at all."""
    assert addresses(cell) is None
    assert addresses(["bob@y.org", cell]) is None


PIECES = [
    *("ann@x.org", "Bob@Y.org", "carol", "<ann@x.org>", "'bob@y.org'", "=?u?q?x?=", ", ", "; "),
    *(",", ";", ":", " ", '"', "(", ")", "'", "\n", "\t", "[", "]", "\\", ".", "@", "<", ">"),
]


def test_what_is_accepted_is_every_address_of_the_cell() -> None:
    """Known by another rule: whatever has an @ in it, between marks that no address has."""
    rng, accepted = np.random.default_rng(16), 0
    for length in rng.integers(1, 8, 50_000):
        cell = "".join(PIECES[piece] for piece in rng.integers(0, len(PIECES), length))
        found = addresses(cell)
        if found is None:
            continue
        accepted += bool(found)
        words = re.split(r'[\s,;:<>()\[\]"\\]+', cell.lower())
        assert found == [word.strip("'") for word in words if "@" in word]
        assert all(address in cell.lower() for address in found)
        assert all(re.fullmatch(r"[^@.][^@]*[^@.]@[^@.]+([.][^@.]+)*", one) for one in found)
    assert accepted > 2000


def test_one_long_cell_takes_no_long_time() -> None:
    began = process_time()
    for piece in (" ", "a", "a.", "'", '"', '" "', "(", "a ", "=?", "<"):
        assert addresses(f"ann@x.org, {piece * 50_000}!") is None
    assert process_time() - began < 10.0  # a rule that goes back and forth takes minutes
