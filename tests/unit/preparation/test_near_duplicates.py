"""Near-duplicates by MinHash: of a user's own texts, and of anybody's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.preparation.preparation_samples import prepare, step

WORDS = [f"word{number}" for number in range(200)]
LONG = " ".join(WORDS[:60])
CLOSE = " ".join([*WORDS[:59], "other"])  # 55 of 57 shingles in common: similarity 0.96
FAR = " ".join(WORDS[30:90])  # 26 of 86: 0.30


def test_a_users_own_near_duplicates() -> None:
    rows = [("ann", LONG), ("bob", CLOSE), ("ann", CLOSE.upper()), ("ann", FAR)]
    kept, dropped = prepare(rows, step("near-duplicates"))
    assert kept == [rows[0], rows[1], rows[3]]
    assert dropped == {"near-duplicates: close to an earlier text": 1}


def test_near_duplicates_of_anybody_are_marked_as_such() -> None:
    rows = [("ann", LONG), ("bob", CLOSE), ("ann", FAR)]
    kept, dropped = prepare(rows, step("near-duplicates", within="data"))
    assert kept == [rows[0], rows[2]]
    assert dropped == {
        "near-duplicates (across users): anything": 0,
        "near-duplicates (across users): close to an earlier text": 1,
    }


@pytest.mark.parametrize(("overlap", "found"), [(0.95, True), (0.6, False)])
def test_the_threshold_is_one_of_similarity(overlap: float, found: bool) -> None:
    """Pairs of a known Jaccard similarity on either side of 0.8, hundred of them."""
    rng = np.random.default_rng(0)
    hits = 0
    for pair in range(100):
        words = [f"{pair}-{number}" for number in rng.permutation(200)]
        shared = round(overlap * 100)
        rest = (100 - shared) // 2
        first, second = words[: shared + rest], words[:shared] + words[150 : 150 + rest]
        rows = [("ann", " ".join(first)), ("ann", " ".join(second))]
        hits += len(prepare(rows, step("near-duplicates", shingle_words=1))[0]) == 1
    assert hits == 100 if found else hits == 0
