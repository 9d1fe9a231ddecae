"""Shards are cut by work: nobody lost, order kept, none much larger than the others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsim.grids.sharding import even_shards, most_tokens_per_unit, unit_tokens
from fedsim.materials import Materials, load_materials
from fedsim.strategy import build_plan
from tests.conftest import small_config


@given(
    tokens=st.lists(st.integers(0, 1000), min_size=1, max_size=60),
    picked=st.sets(st.integers(0, 59)),
    count=st.integers(1, 20),
)
def test_a_cut_keeps_everybody_in_order(tokens: list[int], picked: set[int], count: int) -> None:
    work = np.array(tokens)
    cohort = np.array(sorted(key for key in picked if key < len(tokens)), dtype=np.int64)
    pieces = even_shards(cohort, work, count)
    assert len(pieces) <= count
    assert all(len(piece) for piece in pieces)
    assert np.array_equal(np.concatenate([cohort[:0], *pieces]), cohort)
    loads = [np.maximum(work[piece], 1).sum() for piece in pieces]
    if pieces:  # no shard is more than one unit above the mean
        largest = np.maximum(work[cohort], 1).max()
        assert max(loads) <= sum(loads) / count + largest


def test_a_heavy_user_gets_a_shard_of_its_own() -> None:
    tokens = np.array([1, 1, 100, 1, 1, 1, 1, 1])
    pieces = even_shards(np.arange(8), tokens, 4)
    assert max(len(piece) for piece in pieces if 2 not in piece) <= 5
    by_number = np.array_split(np.arange(8), 4)
    assert max(tokens[p].sum() for p in by_number) >= max(tokens[p].sum() for p in pieces) - 2


def test_work_is_what_a_unit_brings(speeches: Path, materials: Materials) -> None:
    users = build_plan(small_config(speeches, strategy={"group_size": 2}), materials)
    tokens = unit_tokens(users, materials)
    assert tokens.shape == (materials.split.num_users,)
    user = int(np.argmax(materials.split.user_sizes))
    lengths = materials.store.lengths(materials.split.user_examples(user))
    assert tokens[user] == lengths.sum() * min(len(lengths), 2) // len(lengths)
    els = {"name": "els", "cohort_size": None, "batch_size": 6}
    examples = build_plan(small_config(speeches, strategy=els), materials)
    tokens = unit_tokens(examples, materials)
    assert np.array_equal(tokens[examples.pool], materials.store.lengths(examples.pool))


def test_what_the_engine_is_chosen_by_depends_on_nobodys_text(
    speeches: Path, tmp_path: Path
) -> None:
    """Engines clip with different margins: another engine would be another update of everybody."""
    longer = tmp_path / "longer.jsonl"
    row = {"author": "newcomer", "body": "the king shall ride to war " * 40}
    longer.write_text(f"{json.dumps(row)}\n{speeches.read_text('utf-8')}", encoding="utf-8")
    sizes = []
    for source in (speeches, longer):
        config = small_config(source)
        found = load_materials(config.seed, config.data, config.model, "cpu")
        sizes.append(most_tokens_per_unit(found, 3))
    assert sizes == [3 * 24, 3 * 24]
