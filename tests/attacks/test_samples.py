"""Who is attacked with which texts, on the run of the fixture and on sizes that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsim.attacks.samples import AttackSamples, choose_sides, default_samples, known_samples
from fedsim.config import load_config
from fedsim.errors import ConfigError
from fedsim.evaluation.scoring import owners
from fedsim.materials import load_materials
from tests.conftest import small_config, write_rows


def test_nobody_is_attacked_with_what_was_trained_on(attacked: Path) -> None:
    config = load_config(attacked / "config.toml")
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    store, split = materials.store, materials.split
    known = known_samples(store, split, config.data, config.seed)
    assert not np.isin(known.samples, split.train_examples).any()
    assert len(np.unique(known.samples)) == len(known.samples)
    whose = owners(store, known.samples)
    assert np.array_equal(whose, np.repeat(known.users, known.counts))
    of_members = np.sort(known.samples[np.repeat(known.member, known.counts)])
    assert np.array_equal(of_members, split.held_out_examples)
    # a held-out user's samples are as many as the same user would have had as a member
    sizes = np.diff(store.user_offsets)[known.users]
    expected = np.minimum(np.floor(0.4 * sizes + 0.5), sizes - 1)
    assert np.array_equal(known.counts, expected)


@pytest.mark.parametrize("co_owned", [False, True])
def test_a_text_that_its_user_has_twice_is_no_sample(tmp_path: Path, co_owned: bool) -> None:
    """Of neither side: only a trained user's other copy is trained on."""
    rows = [
        {"author": f"user {user}", "others": [f"user {(user + 1) % 20}"], "body": f"{word} {user}"}
        for user in range(20)
        for word in ("once", "twice", "twice", "again", "and", "more")
    ]
    source = write_rows(tmp_path / "rows.jsonl", rows)
    owners_of = {"owners_column": "others"} if co_owned else {}
    config = small_config(
        source, data={"held_out_users": 0.4, "held_out_examples": 0.4, **owners_of}
    )
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    store, split = materials.store, materials.split
    known = known_samples(store, split, config.data, config.seed)
    trained_on = {store.example(int(example)).tobytes() for example in split.train_examples}
    own = known.samples[np.repeat(known.users < store.num_users, known.counts)]
    texts = [store.example(int(example)).tobytes() for example in own]
    assert texts
    assert not trained_on.intersection(texts)
    _, times = np.unique(texts, return_counts=True)
    both = set(known.users[known.member].tolist()), set(known.users[~known.member].tolist())
    assert all(both)
    assert co_owned or times.max() <= 2  # both copies were held out, or neither is there


def sample(counts_in: list[int], counts_out: list[int]) -> tuple[AttackSamples, np.ndarray]:
    """Return users with so many samples each; a count of 0 is a user without one."""
    counts = np.array([*counts_in, *counts_out], np.int64)
    users = np.arange(len(counts))
    some = counts > 0
    known = AttackSamples(
        users=users[some],
        offsets=np.concatenate(([0], np.cumsum(counts[some]))).astype(np.int64),
        samples=np.arange(counts.sum()),
        trained=users[: len(counts_in)],
        held_out=users[len(counts_in) :],
    )
    return known, users


def test_users_with_too_few_are_left_out_and_counted() -> None:
    known, everyone = sample([3, 1, 5, 0], [4, 4, 2, 0, 0])
    sides = choose_sides(known, everyone, 3)
    assert known.users[sides.inside].tolist() == [0, 2]
    assert known.users[sides.outside].tolist() == [4, 5]
    assert (sides.left_out_in, sides.left_out_out) == (2, 3)


def test_the_error_says_how_many_have_enough_and_what_would_do() -> None:
    known, everyone = sample([3, 1, 5], [4, 4, 2])
    with pytest.raises(
        ConfigError, match=r"--samples 4: 1 trained and 2 held-out .* give a smaller number"
    ):
        choose_sides(known, everyone, 4)
    with pytest.raises(ConfigError, match=r"1 trained and 3 held-out .* hold out more"):
        choose_sides(*sample([1], [1, 1, 1]), 1)


def test_by_default_half_of_both_sides_have_enough() -> None:
    known, everyone = sample([9, 9, 9, 1], [5, 4, 4, 1])
    assert default_samples(known, [everyone]) == [1, 2, 4]
    assert default_samples(known, [everyone, np.array([3, 7])]) == [1]
