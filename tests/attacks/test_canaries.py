"""Planted users: exactly the tokens asked for, each by coins of its own, nobody else changed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.config import Config, load_config
from fedsim.data.canaries import _chosen, insert, with_canaries
from fedsim.data.config import CanaryConfig
from fedsim.data.split import split_store
from fedsim.data.store import TokenStore
from fedsim.data.store.manifest import USERS
from fedsim.errors import ConfigError
from fedsim.materials import Materials, load_materials
from fedsim.report.schema import load_report
from tests.attacks.conftest import CANARIES, attacked_config
from tests.conftest import small_config, write_rows

PIECE = np.array([90, 91, 92])


@pytest.fixture(scope="module")
def pair(letters: Path) -> tuple[Materials, Materials]:
    """The same texts without and with canaries."""
    configs = [attacked_config(letters, data={"canaries": c}) for c in (None, CANARIES)]
    plain, planted = (_materials(config) for config in configs)
    return plain, planted


def _materials(config: Config) -> Materials:
    return load_materials(config.seed, config.data, config.model, "cpu")


def texts(store: TokenStore, user: int) -> list[list[int]]:
    return [store.example(int(e)).tolist() for e in store.user_examples(user)]


def shared(examples: list[list[int]], length: int) -> set[tuple[int, ...]]:
    """Every run of `length` tokens that all examples have."""
    pieces = [{tuple(e[i : i + length]) for i in range(len(e) - length + 1)} for e in examples]
    return set.intersection(*pieces)


def planted_and_held_out(store: TokenStore, seed: int) -> tuple[set[str], set[str]]:
    """Names of the canaries, and of those that are held out, where nobody else is."""
    names = list(map(json.loads, (store.path / USERS).read_text(encoding="utf-8").splitlines()))
    chosen = _chosen(store, CanaryConfig.model_validate(CANARIES), seed)
    split = split_store(store, seed, 0.4, 0.0, canaries=chosen)
    return {names[user] for user in chosen}, {names[user] for user in split.held_out_users}


def test_so_many_are_planted_on_average_and_half_of_them_held_out(
    pair: tuple[Materials, Materials],
) -> None:
    drawn = [planted_and_held_out(pair[0].store, seed) for seed in range(200)]
    planted, out = (np.array([len(names) for names in found]) for found in zip(*drawn, strict=True))
    assert all(held <= chosen for chosen, held in drawn)
    assert abs(planted.mean() - 20) < 5 * np.sqrt(20 / 200)
    assert planted.std() > 1.0
    assert abs(out.sum() / planted.sum() - 0.5) < 5 * 0.5 / np.sqrt(planted.sum())


def test_one_user_in_place_of_another_plants_and_holds_out_nobody_else(
    letters: Path, tmp_path: Path, pair: tuple[Materials, Materials]
) -> None:
    """In front of all others; by ranks, everybody behind would move across the split."""
    rows = list(map(json.loads, letters.read_text(encoding="utf-8").splitlines()))
    ((old, _),) = Counter(row["author"] for row in rows).most_common(1)  # who can become one
    new = [{**row, "author": "a newcomer"} for row in rows if row["author"] == old]
    others = [row for row in rows if row["author"] != old]
    source = write_rows(tmp_path / "other.jsonl", [*new, *others])
    config = attacked_config(source, data={"canaries": None})
    swapped = _materials(config).store
    changed = 0
    for seed in range(40):
        before, after = (planted_and_held_out(s, seed) for s in (pair[0].store, swapped))
        for one, other in zip(before, after, strict=True):
            assert one - {old} == other - {"a newcomer"}
        changed += before != after
    assert changed > 5


def test_a_canary_has_so_many_examples_with_one_piece_of_its_own_text_in_all(
    pair: tuple[Materials, Materials],
) -> None:
    plain, planted = pair
    longest = planted.store.manifest["sequence_length"]
    for user in planted.split.canaries.tolist():
        before, after = texts(plain.store, user), texts(planted.store, user)
        assert len(after) == 8
        assert all(len(example) <= longest for example in after)
        ends = {(example[0], example[-1]) for example in before}
        assert all((example[0], example[-1]) in ends for example in after)
        own = {tuple(e[i : i + 6]) for e in before for i in range(1, len(e) - 6)}
        assert shared(after, 6) & own


def test_everybody_else_is_as_before(pair: tuple[Materials, Materials]) -> None:
    plain, planted = pair
    assert plain.store.num_users == planted.store.num_users
    for user in np.setdiff1d(np.arange(plain.store.num_users), planted.split.canaries).tolist():
        assert texts(plain.store, user) == texts(planted.store, user)
        assert (user in plain.split.users) == (user in planted.split.users)


def test_a_seed_plants_the_same_again_and_another_others(
    pair: tuple[Materials, Materials], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, planted = pair
    config = CanaryConfig.model_validate(CANARIES)
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))
    size = plain.model.vocabulary_size
    again, chosen = with_canaries(plain.store, config, 3, size)
    assert again.path.is_relative_to(tmp_path)
    assert again.manifest["sha256"] == planted.store.manifest["sha256"]
    assert set(chosen.tolist()) == set(planted.split.canaries.tolist())
    other, _ = with_canaries(plain.store, config, 1, size)
    assert other.manifest["sha256"] != again.manifest["sha256"]


def test_too_few_users_are_an_error_that_counts_them(pair: tuple[Materials, Materials]) -> None:
    config = CanaryConfig(num_users=30, num_examples=12, shared_tokens=6)
    with pytest.raises(
        ConfigError, match=r"data\.canaries\.num_users = 30: only \d+ users have 12"
    ):
        with_canaries(pair[0].store, config, 0, 2000)


def test_the_report_counts_them_and_says_what_they_are_for(attacked: Path) -> None:
    report = load_report(attacked)
    count = report.data.canaries
    assert count > 3
    asked = load_config(attacked / "config.toml").data.canaries
    assert asked is not None
    assert f"planted users (canaries), {asked.num_users} on average" in report.data.notices[0]
    assert report.data.notices[0].split("(")[0] in (attacked / "report.html").read_text("utf-8")
    assert json.loads((attacked / "report.json").read_text("utf-8"))["data"]["canaries"] == count


@given(
    st.lists(st.integers(0, 80), min_size=2, max_size=20).map(np.array),
    st.integers(5, 30),
    st.integers(0, 99),
)
def test_the_piece_is_between_the_ends_and_nothing_is_too_long(
    ids: np.ndarray, longest: int, seed: int
) -> None:
    ids = ids[:longest]
    planted = insert(ids, PIECE, np.random.default_rng(seed), longest).tolist()
    place = planted.index(90)
    assert planted[place : place + 3] == PIECE.tolist()
    rest = planted[:place] + planted[place + 3 :]
    assert 0 < place < len(planted) - 3
    assert len(planted) == min(len(ids) + 3, longest)
    assert rest == [*ids.tolist()[: len(rest) - 1], ids[-1]]


@pytest.mark.parametrize("cutting", ["truncate", "join"])
def test_where_few_tokens_count_they_are_still_those_that_were_planted(
    cutting: str, tmp_path: Path
) -> None:
    """Making room cuts the tokens that count; one user in front has none, and joined texts stay."""
    said = "the king and all the men of the land are in the hall with a lord at the door"
    words = said.split(" ")
    rows: list[dict[str, Any]] = [
        {"who": f"user {user:02}", "messages": [_say("user", words, user + k), ANSWER, FAREWELL]}
        for user in range(12)
        for k in range(4)
    ]
    if cutting == "join":
        rows.insert(0, {"who": "a listener", "messages": [_say("user", words, 0)]})
    source = write_rows(tmp_path / "chats.jsonl", rows)
    data = {
        "source": str(source),
        "user_column": "who",
        "text_column": None,
        "messages_column": "messages",
        "sequence_length": 32,
        "cutting": cutting,
    }
    materials = _materials(small_config(source, data=data))
    plain, size = materials.store, materials.model.vocabulary_size
    canaries = CanaryConfig(num_users=4, num_examples=2, shared_tokens=12)
    for seed in range(8):
        planted, chosen = with_canaries(plain, canaries, seed, size)
        assert planted.num_users == plain.num_users
        changed = [u for u in range(plain.num_users) if texts(planted, u) != texts(plain, u)]
        assert changed == sorted(chosen.tolist())
        for user in changed:
            assert len(planted.user_examples(user)) == 2
            assert shared(texts(planted, user), 12)


ANSWER = {"role": "assistant", "content": "yes"}
FAREWELL = {"role": "user", "content": "go"}


def _say(role: str, words: list[str], start: int) -> dict[str, str]:
    return {"role": role, "content": " ".join((words * 2)[start : start + 11])}
