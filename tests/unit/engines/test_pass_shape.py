"""Passes have a few shapes: a row's length is its own, and empty rows fill the rest."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.clients.engines import vmap
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.pass_shape import PassShape
from fedsim.clients.engines.per_example.passes import passes
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clipping import FlatClip
from fedsim.execution import Unit
from tests.conftest import Patch
from tests.contracts.layer_samples import VOCABULARY, GivenUnits, network

CPU = torch.device("cpu")
SHAPES = [PassShape(), PassShape(50), PassShape(64, steps=1, one_size=True)]


def unit(key: int, lengths: list[int], *, streams: bool = False) -> Unit:
    source = torch.Generator().manual_seed(key)
    tokens = torch.randint(1, VOCABULARY, (len(lengths), max(lengths)), generator=source)
    rows = torch.arange(len(lengths)) + 1 if streams else None
    return Unit(key, tokens, torch.tensor(lengths), streams=rows)


def rows_of(
    units: list[Unit], key: int, shape: PassShape, max_tokens: int, row_tokens: int
) -> list[list[list[float]]]:
    """Return a unit's rows, pass by pass: their padded tokens and their positions, end to end."""
    found, place = [], [one.key for one in units].index(key)
    for part in passes(units, max_tokens, CPU, torch.float64, row_tokens=row_tokens, shape=shape):
        own = part.segments.unit_of_row(CPU) == place
        of_rows = (part.batch.tokens, part.batch.positions)
        if own.any():
            found.append(
                [[] if of is None else of[: len(own)][own].flatten().tolist() for of in of_rows]
            )
    return found


def test_a_row_is_padded_by_its_own_tokens_and_never_beyond_what_the_network_has() -> None:
    for most in (0, 12, 64, 1000):
        shape = PassShape(most)
        padded = [shape.padded(length) for length in range(1, 1100)]
        assert padded == sorted(padded)
        for length, of in enumerate(padded, start=1):
            assert length <= of <= max(length, most)
            assert of == length or of <= max(length + 31, 1.25 * length)
        assert len(set(padded)) <= 1099 - most + 20


@given(
    st.lists(st.lists(st.integers(1, 70), min_size=1, max_size=9), max_size=12),
    st.lists(st.integers(1, 70), min_size=1, max_size=40),
    st.integers(0, 12),
    st.sampled_from([64, 200, 4096]),
    st.sampled_from(SHAPES),
    st.sampled_from([0, 20, 64]),
)
def test_nobody_decides_how_the_rows_of_another_are_padded_or_cut(
    others: list[list[int]],
    own: list[int],
    place: int,
    max_tokens: int,
    shape: PassShape,
    row_tokens: int,
) -> None:
    """Nor whether they have positions, which let attention take another kernel."""
    me = unit(99, own)
    units = [unit(key, lengths) for key, lengths in enumerate(others)]
    units.insert(place, me)
    settings = (shape, max_tokens, row_tokens)
    assert rows_of(units, 99, *settings) == rows_of([me], 99, *settings)


@pytest.mark.parametrize("max_tokens", [64, 1000, 4096])
@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=12), streams=st.booleans())
def test_passes_have_few_sizes_and_lose_no_row(
    counts: list[int], max_tokens: int, streams: bool
) -> None:
    units = [
        unit(key, [3 + 7 * key % 60] * count, streams=streams) for key, count in enumerate(counts)
    ]
    for shape in SHAPES:
        sizes: dict[int, set[int]] = {}
        shares = torch.zeros(len(units), dtype=torch.float64)
        for part in passes(units, max_tokens, CPU, torch.float64, shape=shape):
            rows, length = part.batch.tokens.shape
            sizes.setdefault(length, set()).add(rows)
            assert rows * length <= max(max_tokens, length)
            assert part.batch.streams is None or len(part.batch.streams) == rows
            unit_of_row = part.segments.unit_of_row(CPU)
            of_rows = part.batch.shares.sum(dim=1)
            assert not of_rows[len(unit_of_row) :].any()
            shares.index_add_(0, unit_of_row, of_rows[: len(unit_of_row)])
        torch.testing.assert_close(shares, torch.ones_like(shares))
        for length, found in sizes.items():
            most = shape.most(length, max_tokens)
            possible = {shape.filled(rows, most) for rows in range(1, most + 1)}
            assert found <= possible
            assert len(possible) <= (1 if shape.one_size else 4 + 4 * most.bit_length())


def test_vmap_fills_small_batches(monkeypatch: Patch) -> None:
    model, parameters = network("gpt2 in rows", torch.float32)
    sizes: list[tuple[int, int]] = []
    stacked = vmap._stacked

    def seen(units: list[Unit], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append((len(units), length))
        return stacked(units, length)

    monkeypatch.setattr(vmap, "_stacked", seen)
    task = GivenUnits(model, [unit(key, [3]) for key in range(9)])
    clip = FlatClip(l2_clip_norm=0.1)
    total = VmapEngine(model)(task, parameters, task.keys, clip, 0)
    assert sizes == [(10, 32)]
    expected = loop(task, parameters, task.keys, clip, 0)
    for name, value in expected.values.items():
        torch.testing.assert_close(total.values[name], value, rtol=1e-3, atol=1e-5)
