"""Damaged token stores."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from fedsim.data.inspection import inspect_store
from fedsim.data.split import split_store
from fedsim.data.store import TokenStore
from fedsim.data.store.manifest import FILES, MANIFEST
from tests.robustness.fuzzing.mutations import Dice, changed_bytes, pick
from tests.robustness.fuzzing.samples import STORE, token_store
from tests.robustness.fuzzing.target import Target, believe


class Payload:
    """What a pickle makes when it is read: a folder that shows that it was."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.mkdir, (Path("unpickled"),)  # type: ignore[return-value]


def _write(valid: Path, place: Path, dice: Dice) -> None:
    shutil.copytree(valid / STORE, place / STORE)
    path = place / STORE / pick(dice, [*FILES, MANIFEST])
    path.write_bytes(changed_bytes(dice, path.read_bytes()))


def _read(place: Path) -> None:
    store = TokenStore.open(place / STORE)
    longest = store.manifest["sequence_length"]
    users = [store.user_examples(user) for user in range(min(store.num_users, 100))]
    believe(all(len(examples) for examples in users), "a user without examples")
    everything = np.arange(store.num_examples)
    lengths = store.lengths(everything)
    believe(bool(((lengths >= 1) & (lengths <= longest)).all()), "an example of a wrong length")
    believe(int(lengths.sum()) == store.num_tokens, "tokens that are nobody's")
    believe(bool((np.concatenate(users)[:5] == everything[:5]).all()), "examples out of order")
    for example in (0, store.num_examples - 1):
        believe(len(store.example(example)) == lengths[example], "an example cut short")
    tokens, _ = store.padded(everything[:50])
    believe(tokens.shape == (min(50, len(everything)), lengths[:50].max()), "a wrong block")
    store.verify()
    inspect_store(store)
    split_store(store, 1, 0.2, 0.2)


TARGETS = (Target("store", _write, _read, prepare=token_store),)
