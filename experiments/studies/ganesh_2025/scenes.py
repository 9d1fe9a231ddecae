"""The plays as e-mail: a speech belongs to all speakers of its scene."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsim.config import ModelConfig
from fedsim.data.config import DataConfig
from fedsim.data.reading import open_or_build
from fedsim.data.sources.shakespeare import private_scenes
from fedsim.data.store import Indices, TokenStore
from fedsim.data.store.manifest import OWNERS, USERS
from fedsim.experiments.studies.common.runs import written
from fedsim.materials import Materials, load_materials
from fedsim.seeding import stream

LISTENERS = 2  # every second speaker's own speeches are left out
SCORED = 10  # every tenth speech is scored and never trained on
KNOWN = 8  # maximum texts of a listener that the attacker has


class Texts(NamedTuple):
    """Rows {speaker, text, listeners}, for training and for scoring."""

    rows: list[dict[str, Any]]
    scored: list[dict[str, Any]]


def texts(scenes: Iterable[Sequence[tuple[str, str]]]) -> Texts:
    """Return the rows of some scenes, ordered by the speaker's first appearance.

    Every second speaker in that order is only a listener: the rows lack this speaker's speeches.
    """
    spoken = list(scenes)
    everyone = list(dict.fromkeys(speaker for scene in spoken for speaker, _ in scene))
    silent = set(everyone[LISTENERS - 1 :: LISTENERS])
    rows = [
        {
            "speaker": speaker,
            "text": text,
            "listeners": sorted({who for who, _ in scene} - {speaker}),
        }
        for scene in spoken
        for speaker, text in scene
        if speaker not in silent
    ]
    places = {speaker: place for place, speaker in enumerate(everyone)}
    kept = [row for place, row in enumerate(rows) if place % SCORED]
    return Texts(sorted(kept, key=lambda row: places[row["speaker"]]), rows[::SCORED])


@dataclass(frozen=True, eq=False)
class World:
    """One seed's split of the texts, with all owners and, for the naïve run, with speakers only.

    Attributes:
        seed: seed of split, pool, coins and noise.
        co_owned: texts with all their owners; a share of the owners is held out.
        naive: the training texts of `co_owned`, with the speaker as the only owner.
        scored: texts for losses.
        data: config sections of `co_owned` and `naive`.
    """

    seed: int
    co_owned: Materials
    naive: Materials
    scored: TokenStore
    data: Mapping[bool, Mapping[str, Any]]

    @property
    def train(self) -> Indices:
        """Training examples of every run: example i of the naïve store is train[i] of the other."""
        return self.co_owned.split.train_examples

    def listeners(self) -> tuple[list[Indices], list[Indices]]:
        """Return the attacker's texts of each listener, for members and for others.

        Members are listeners with training texts, and the attacker has some of these; the others
        are held out. Both have at most `KNOWN` texts, drawn from the seed.
        """
        graph, out = _graph(self.co_owned), self.co_owned.split.held_out_owners
        generator = stream(self.seed, "attack", 0)
        trained = np.flatnonzero(graph.degrees(self.train))
        members = [
            np.intersect1d(graph.examples_of(owner), self.train)
            for owner in trained[trained >= graph.num_users]
        ]
        others = [graph.examples_of(owner) for owner in out[out >= graph.num_users]]
        return (
            [generator.permutation(examples)[:KNOWN] for examples in members],
            [generator.permutation(examples)[:KNOWN] for examples in others],
        )

    def most(self, examples: Indices) -> int:
        """Return the maximum number of these examples of the co-owned store of one listener."""
        graph = _graph(self.co_owned)
        return int(graph.degrees(examples)[graph.num_users :].max())


def _graph(materials: Materials) -> Any:  # noqa: ANN401  (an OwnerGraph, never None here)
    return materials.store.graph


def world(
    seed: int, folder: Path, model: ModelConfig, scenes: int | None, held_out: float
) -> World:
    """Write the texts of the first `scenes` scenes into `folder`, split them, and open all.

    Raises:
        RuntimeError: the naïve run would not train on the same texts as the others.
    """
    rows, scored = texts(islice((s for s in private_scenes() if s), scenes))
    common: dict[str, Any] = {
        "cutting": "truncate",
        "sequence_length": 32,
        "held_out_examples": 0.0,
    }
    named = {"user_column": "speaker", "owners_column": "listeners", "held_out_users": held_out}
    data = {True: {**common, **named, "source": str(written(folder / "texts.jsonl", rows))}}
    co_owned = load_materials(seed, DataConfig(**data[True]), model, "cpu")
    names = [
        json.loads(line)
        for file in (USERS, OWNERS)
        for line in (co_owned.store.path / file).read_text(encoding="utf-8").splitlines()
    ]
    out = {names[owner] for owner in co_owned.split.held_out_owners}
    allowed = [row for row in rows if not out & {row["speaker"], *row["listeners"]}]
    alone = [{key: row[key] for key in ("speaker", "text")} for row in allowed]
    data[False] = {**common, "source": str(written(folder / f"speakers-{seed}.jsonl", alone))}
    naive = load_materials(seed, DataConfig(**data[False]), model, "cpu")
    ours = co_owned.store.padded(co_owned.split.train_examples)[0]
    theirs = naive.store.padded(naive.split.train_examples)[0]
    if not np.array_equal(ours, theirs):
        raise RuntimeError("the naïve run would train on other texts")
    whole = DataConfig(**common, source=str(written(folder / "scored.jsonl", scored)))
    return World(seed, co_owned, naive, open_or_build(whole, co_owned.model), data)
