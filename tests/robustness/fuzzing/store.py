"""Hostile token stores: damage with and without checksums that fit it, and half-done builds."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.data.building.build import build_store
from fedsim.data.inspection import inspect_store
from fedsim.data.split import split_store
from fedsim.data.store import TokenStore
from fedsim.data.store.integrity import facts
from fedsim.data.store.manifest import EXAMPLE_OFFSETS, FILES, MANIFEST, USER_OFFSETS, fingerprint
from tests.robustness.fuzzing.mutations import Dice, changed_bytes, changed_tree, odd_value, pick
from tests.robustness.fuzzing.samples import STORE, encode, read_json, token_store, write_json
from tests.robustness.fuzzing.target import Target, believe


class Payload:
    """What a pickle makes when it is read: a folder that shows that it was."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.mkdir, (Path("unpickled"),)  # type: ignore[return-value]


def _write(valid: Path, place: Path, dice: Dice) -> None:
    shutil.copytree(valid / STORE, place / STORE)
    how = dice.random()
    if how < 0.15:  # the integrity check has to see it
        path = place / STORE / pick(dice, [*FILES, MANIFEST])
        path.write_bytes(changed_bytes(dice, path.read_bytes()))
        return
    if how < 0.5:
        path = place / STORE / pick(dice, [EXAMPLE_OFFSETS, USER_OFFSETS])
        path.write_bytes(_changed_array(dice, np.load(path)))
    elif how < 0.7:
        path = place / STORE / pick(dice, FILES)
        path.write_bytes(changed_bytes(dice, path.read_bytes()))
    _seal(place / STORE, dice, changed=how >= 0.7)


def _changed_array(dice: Dice, array: Any) -> bytes:  # noqa: ANN401
    how = int(dice.integers(9))
    odd = pick(dice, [-1, 0, 2**40, 2**62, -(2**63), 2**63 - 1])
    if how == 0:
        array[int(dice.integers(len(array)))] = odd
    elif how == 1:
        array = array[::-1]
    elif how == 2:
        array = array.astype(pick(dice, ["f8", "i4", "u8", "S3", "M8[s]", "c16", "?", ">i8"]))
    elif how == 3:
        array = array[:, None] if dice.random() < 0.5 else array[0]
    elif how == 4:
        array = array + int(pick(dice, [-5, 1, 2**40]))
    elif how == 5:
        dice.shuffle(array)
    elif how == 6:
        array[1:-1] = array[0]
    buffer = io.BytesIO()
    if how == 7:
        np.save(buffer, np.array([Payload()], dtype=object), allow_pickle=True)
        return buffer.getvalue()
    np.save(buffer, array)
    if how == 8:  # a header that declares what is not there
        head = buffer.getvalue()[:128]
        shape = pick(dice, [b"(10**12,)", b"(999999999999,)", b"(-1,)", b"(0,)", b"(1, 2, 3)"])
        start = head.index(b"(")
        stop = head.index(b")") + 1
        changed = (head[:start] + shape + head[stop:]).replace(b" " * len(shape), b"", 1)
        return changed[:127].ljust(127) + b"\n" + buffer.getvalue()[128:]
    return pickle.dumps(Payload()) if dice.random() < 0.05 else buffer.getvalue()


def _seal(store: Path, dice: Dice, *, changed: bool) -> None:
    """Make sizes, checksums and, often, counts fit what is there now."""
    manifest = read_json(store / MANIFEST)
    if changed:
        manifest = changed_tree(dice, manifest)
    if not isinstance(manifest, dict):
        write_json(store / MANIFEST, manifest)
        return
    if isinstance(manifest.get("files"), dict) and (not changed or dice.random() < 0.5):
        manifest["files"] |= {name: facts(store / name) for name in FILES}
        if dice.random() < 0.1:
            name = pick(dice, ["../../outside/secret.json", "/etc/hostname", "..", "", "a\0b"])
            manifest["files"][name] = {"bytes": 3, "sha256": "0" * 64}
    if dice.random() < 0.5:
        manifest |= _counts(store)
    manifest["sha256"] = fingerprint(manifest)  # type: ignore[arg-type]
    write_json(store / MANIFEST, manifest)


def _counts(store: Path) -> dict[str, Any]:
    counts = {}
    for name, file in (("users", USER_OFFSETS), ("examples", EXAMPLE_OFFSETS)):
        try:
            counts[name] = len(np.load(store / file, mmap_mode="r")) - 1
        except Exception:  # noqa: S112  (numpy has many ways to say that it is no array)
            continue
    return counts


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


def _write_leftovers(valid: Path, place: Path, dice: Dice) -> None:
    """Leave a build behind that was killed after its segments, and damage it."""
    rows = [("ann", "one two"), ("bob", "three")]
    parts = place / ".store.build" / "parts"
    parts.mkdir(parents=True)
    (place / ".store.build" / "plan.json").write_text('{"key": "k"}', encoding="utf-8")
    head = {"records": 2, "examples": 2, "tokens": 16, "dropped": {}, "new_users": ["ann", "bob"]}
    write_json(parts / "0000.json", head)
    write_json(parts / "read.json", {"segments": 1, "dropped": {}})
    ids = encode([text for _, text in rows])
    np.concatenate([np.array(one, "<u2") for one in ids]).tofile(parts / "0000.tokens")
    np.array([0, 1], "<u4").tofile(parts / "0000.users")
    np.array([len(one) for one in ids], "<u4").tofile(parts / "0000.lengths")
    path = pick(dice, sorted(parts.iterdir()))
    if path.suffix == ".json" and dice.random() < 0.8:
        write_json(path, changed_tree(dice, read_json(path)))
    elif dice.random() < 0.5 and path.suffix != ".json":
        path.write_bytes(dice.bytes(path.stat().st_size))  # of the size that it was
    else:
        path.write_bytes(changed_bytes(dice, path.read_bytes()))
    if dice.random() < 0.1:
        plan = place / ".store.build" / "plan.json"
        plan.write_text(pick(dice, ["", "{", json.dumps(odd_value(dice))]), encoding="utf-8")


def _read_leftovers(place: Path) -> None:
    store = build_store(
        [("ann", "one two"), ("bob", "three")],
        encode=encode,
        vocabulary_size=258,
        tokenizer_fingerprint="bytes",
        sequence_length=16,
        cutting="split",
        destination=place / "store",
        source="a sample",
        key="k",
        num_workers=0,
    )
    texts = [bytes(store.example(e)[1:-1].astype("u1")) for e in range(store.num_examples)]
    believe(texts == [b"one two", b"three"], f"a store of other texts: {texts!r}")
    believe(store.num_users == 2, "a store of other users")


TARGETS = (
    Target("store", _write, _read, prepare=token_store),
    Target("half-done build", _write_leftovers, _read_leftovers),
)
