"""A row has a length of its own beside whoever it is, and a steep network shares no pass."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from fedsim.clients.engines import vmap
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.pass_shape import PassShape, pass_shape
from fedsim.clients.engines.per_example import batched, capture
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.gradient_terms import Segments, write_product
from fedsim.clients.engines.per_example.materialised import _Pass, _steps, materialised
from fedsim.clients.engines.per_example.passes import Pass, passes
from fedsim.clients.engines.steepness import MOST, steepness
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clipping import FlatClip
from fedsim.config import ModelConfig
from fedsim.execution import Engine, Unit, Update
from fedsim.language_model import LanguageModel
from fedsim.materials import load_model
from fedsim.tensors import Tensors
from tests.conftest import Log, Patch
from tests.contracts.layer_samples import NETWORKS, VOCABULARY, GivenUnits, Opened, network

ENGINES = [materialised, ghost, VmapEngine]
CPU = torch.device("cpu")
CLIP = FlatClip(l2_clip_norm=0.1)


def unit(key: int, lengths: list[int], *, streams: bool = False) -> Unit:
    source = torch.Generator().manual_seed(key)
    tokens = torch.randint(1, VOCABULARY, (len(lengths), max(lengths)), generator=source)
    rows = torch.arange(len(lengths)) + 1 if streams else None
    return Unit(key, tokens, torch.tensor(lengths), streams=rows)


def cut(units: list[Unit], shape: PassShape, max_tokens: int = 4096) -> list[Pass]:
    return list(passes(units, max_tokens, CPU, torch.float64, shape=shape))


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


def test_the_shapes_of_networks() -> None:
    recurrent = pass_shape(network("lstm", torch.float32)[0])
    assert recurrent == PassShape(12, 16, 128, 4, 192, 4)  # of 8 hidden numbers
    gru = cast(OpenModel, Opened(nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 2))))
    assert pass_shape(gru) == PassShape(0, 16, 128, 16, 192, 4)
    positions = pass_shape(network("gpt2 in rows", torch.float32)[0])
    assert positions == PassShape(64, least_tokens=192, token_step=4)


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
    st.sampled_from(
        [PassShape(50, least_tokens=192, token_step=4), PassShape(64, 16, 128, 4, 192), PassShape()]
    ),
    st.sampled_from([0, 20, 64]),
)
@example([[20, 20]], [20, 20], 1, 64, PassShape(), 0)  # a pass has room for three rows
@example(
    [[5, 5]], [5], 0, 64, PassShape(50, least_tokens=192, token_step=4), 20
)  # they share a row
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


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=4))
def test_a_product_is_of_all_rows_that_a_unit_has_in_a_pass(counts: list[list[int]]) -> None:
    """In pieces, which a neighbour's number of rows decided, it would be rounded otherwise."""
    parts = [_Pass(Segments(of_units, whole=False)) for of_units in counts]
    formed = [False] * 5
    seen: dict[int, list[tuple[_Pass, int]]] = {unit: [] for unit in range(5)}
    for step in _steps(parts, formed):
        for unit in (step.unit, step.unit + 1) if step.distance else (step.unit,):
            start = step.start + step.distance * (unit - step.unit)
            assert start == step.of.starts[unit]
            assert step.add == bool(seen[unit])
            seen[unit].append((step.of, step.size))
    for unit, pieces in seen.items():
        own = [(part, part.segments.counts[unit]) for part in parts]
        assert pieces == [(part, count) for part, count in own if count]
        assert formed[unit] == bool(pieces)


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (16, 1), (1, 1), (64, 1), (1, 64), (3, 4)])
@pytest.mark.parametrize("add", [False, True])
def test_a_narrow_product_is_the_same_in_any_batch(rows: int, columns: int, add: bool) -> None:
    """Else who else is there decides in which order it is summed, as of adapters of rank 1."""
    source = torch.Generator().manual_seed(0)
    for positions in (8, 32, 64, 512):
        left = torch.rand(5, positions, rows, generator=source).mT
        right = torch.rand(5, positions, columns, generator=source)
        start = torch.rand(5, rows, columns, generator=source)
        alone = start.clone()
        for unit in range(5):
            write_product(alone[unit], left[unit], right[unit], add=add)
        for count in range(1, 6):
            together = start[:count].clone()
            write_product(together, left[:count], right[:count], add=add)
            assert torch.equal(together, alone[:count])


@pytest.mark.parametrize("positions", [33, 50, 64])
@pytest.mark.parametrize("name", ["gpt2 in rows", "lstm"])
def test_the_positions_of_a_pass_are_a_multiple_of_four(name: str, positions: int) -> None:
    shape = replace(pass_shape(network(name, torch.float32)[0]), most_positions=positions)
    for count in (1, 5, 81, 300):
        for part in cut([unit(key, [positions]) for key in range(count)], shape):
            assert part.batch.tokens.numel() % 4 == 0
            assert part.batch.tokens.numel() <= 4096


@pytest.mark.parametrize("streams", [False, True])
def test_small_passes_are_filled_and_nothing_else_changes(streams: bool) -> None:
    units = [unit(0, [3, 5], streams=streams), unit(1, [2], streams=streams)]
    units.append(unit(2, [30], streams=streams))
    for shape in (
        PassShape(),
        PassShape(64),
        PassShape(64, row_step=16),
        PassShape(64, 16, 128, 8, 640),
    ):
        shares, tokens = torch.zeros(3, dtype=torch.float64), 0
        for part in cut(units, shape):
            rows, positions = part.batch.tokens.shape
            assert rows % shape.row_step == 0
            assert rows * positions >= shape.least_tokens
            assert positions % 32 == 0 or not shape.most_positions
            assert rows >= sum(part.segments.counts)
            assert part.batch.streams is None or len(part.batch.streams) == rows
            tokens += int((part.batch.tokens > 0).sum())
            of_rows = part.batch.shares.sum(dim=1)
            unit_of_row = part.segments.unit_of_row(CPU)
            assert float(of_rows[len(unit_of_row) :].abs().sum()) == 0.0
            shares.index_add_(0, unit_of_row, of_rows[: len(unit_of_row)])
        torch.testing.assert_close(shares, torch.ones(3, dtype=torch.float64))
        assert tokens == 40


def test_short_rows_that_are_padded_count_as_long() -> None:
    """Else a pass of them would take several times the memory that it may."""
    units = [unit(key, [2]) for key in range(64)]
    assert [len(part.batch.tokens) for part in cut(units, PassShape(64), 256)] == [8] * 8
    assert [len(part.batch.tokens) for part in cut(units, PassShape(64, most_rows=4))] == [4] * 16


@pytest.mark.parametrize("make", [materialised, ghost])
@pytest.mark.parametrize(("name", "shape"), [("lstm", (16, 12)), ("gpt2 in rows", (6, 32))])
def test_engines_take_them(
    make: type, name: str, shape: tuple[int, int], monkeypatch: Patch
) -> None:
    model, parameters = network(name, torch.float32)
    shapes: list[tuple[int, int]] = []

    def seen(*arguments: object) -> torch.Tensor:
        shapes.append(tuple(arguments[3].tokens.shape))  # type: ignore[attr-defined]
        return capture.run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(batched, "run", seen)
    task = GivenUnits(model, [unit(0, [3]), unit(1, [2, 3])])
    total = make(model)(task, parameters, task.keys, CLIP, 0)
    assert shapes == [shape]
    expected = loop(task, parameters, task.keys, CLIP, 0)
    assert total.num_gradients == expected.num_gradients == 3
    assert total.loss == pytest.approx(expected.loss, rel=1e-5)
    for name, value in expected.values.items():
        torch.testing.assert_close(total.values[name], value, rtol=1e-3, atol=1e-5)


def test_vmap_fills_small_batches(monkeypatch: Patch) -> None:
    model, parameters = network("gpt2 in rows", torch.float32)
    sizes: list[tuple[int, int]] = []

    stacked = vmap._stacked

    def seen(units: list[Unit], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append((len(units), length))
        return stacked(units, length)

    monkeypatch.setattr(vmap, "_stacked", seen)
    task = GivenUnits(model, [unit(0, [3]), unit(1, [40]), unit(2, [5])])
    total = VmapEngine(model)(task, parameters, task.keys, CLIP, 0)
    assert sizes == [(6, 32), (3, 64)]
    expected = loop(task, parameters, task.keys, CLIP, 0)
    for name, value in expected.values.items():
        torch.testing.assert_close(total.values[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize(("factor", "alone"), [(1.0, False), (1e-3, False), (20.0, True)])
def test_how_steep_a_network_is_decides_who_is_computed_together(
    make: Callable[[OpenModel], Engine], factor: float, alone: bool, caplog: Log, monkeypatch: Patch
) -> None:
    """Not a text: a steep one makes any distance of the rounding that company decides."""
    model, start = network("lstm", torch.float32)
    monkeypatch.setattr(model, "sequence_length", 64)
    parameters = {k: v * factor if v.ndim > 1 else v for k, v in start.items()}
    assert (steepness(model, parameters) > MOST) is alone
    task = GivenUnits(model, [unit(key, [3 + key]) for key in range(8)])
    with caplog.at_level(logging.WARNING), counted(task) as asked:
        engine = make(model)
        for round in (0, 1):
            engine(task, parameters, task.keys, CLIP, round)
    assert len(asked) == 16 * alone
    said = [
        record.message for record in caplog.records if "computes each unit alone" in record.message
    ]
    assert len(said) == alone  # not again in the next round


@pytest.mark.parametrize("make", ENGINES)
def test_each_rounds_parameters_are_asked(
    make: Callable[[OpenModel], Engine], monkeypatch: Patch
) -> None:
    """Those that are steep only later, also where they were changed in place."""
    model, parameters = network("lstm", torch.float32)
    monkeypatch.setattr(model, "sequence_length", 64)
    task, engine = GivenUnits(model, [unit(0, [3]), unit(1, [4])]), make(model)

    def num_alone(given: Tensors, round: int) -> int:
        with counted(task) as asked:
            engine(task, given, task.keys, CLIP, round)
        return len(asked)

    assert num_alone(parameters, 0) == 0
    steep = {k: v * 20.0 if v.ndim > 1 else v for k, v in parameters.items()}
    assert num_alone(steep, 1) == 2
    assert num_alone(parameters, 2) == 0
    for value in parameters.values():
        value.mul_(20.0 if value.ndim > 1 else 1.0)
    assert num_alone(parameters, 3) == 2


def steepness_of(module: nn.Module) -> float:
    model = Opened(module)
    return steepness(cast(LanguageModel, model), dict(model.module.named_parameters()))


def test_a_change_grows_by_what_the_layers_make_of_it() -> None:
    """Linear layers pass a share on as it is; a cube makes three of it; a mean takes it away."""

    class Raised(nn.Module):
        def __init__(self, power: float, factor: float = 1.0) -> None:
            super().__init__()
            self.power, self.factor = power, factor

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.factor * values**self.power

    def of(*layers: nn.Module) -> float:
        torch.manual_seed(0)
        table = nn.Embedding(VOCABULARY, 64)
        return steepness_of(nn.Sequential(table, *layers, nn.Linear(64, VOCABULARY, bias=False)))

    assert of() == pytest.approx(1.0, rel=0.05)
    assert of(Raised(3.0)) == pytest.approx(3.0, rel=0.1)
    assert of(Raised(3.0), Raised(3.0)) == pytest.approx(9.0, rel=0.15)
    assert of(Raised(0.0)) == 0.0
    # A softmax goes by the size of logits.
    assert of(Raised(1.0, 3e3)) > MOST > of(Raised(1.0, 3.0))


def test_a_recurrence_is_asked_with_a_text_as_long_as_the_datas(monkeypatch: Patch) -> None:
    model, start = network("lstm", torch.float32)
    parameters = {k: v * 8.0 if v.ndim > 1 else v for k, v in start.items()}
    found = []
    for length in (8, 256):
        monkeypatch.setattr(model, "sequence_length", length)
        found.append(steepness(model, parameters))
    assert found[0] < MOST < found[1]


@pytest.mark.parametrize("name", NETWORKS)
def test_ordinary_networks_share_passes(name: str) -> None:
    model, parameters = network(name, torch.float32)
    assert 0.0 < steepness(model, parameters) < MOST / 2


@pytest.mark.parametrize("name", ["tiny-gpt", "mcmahan-lstm"])
def test_the_built_in_models_do(name: str) -> None:
    model = load_model(ModelConfig(name_or_path=name, pretraining_steps=0))
    assert 0.0 < steepness(model, model.initial_parameters()) < MOST / 2


def test_a_table_of_positions_that_nothing_tells_of_is_kept_to() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(VOCABULARY, 8)
            self.places = nn.Embedding(10, 8)
            self.head = nn.Linear(8, VOCABULARY)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            places = self.places(torch.arange(tokens.shape[1])[None])
            logits: torch.Tensor = self.head(self.words(tokens) + places)
            return logits

    assert 0.0 < steepness_of(Placed()) < 2.0


def test_what_cannot_be_asked_is_steep() -> None:
    model, parameters = network("lstm", torch.float32)
    broken = {name: value * torch.nan for name, value in parameters.items()}
    assert steepness(model, broken) == math.inf

    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.table[tokens]

    assert steepness_of(Looked()) == math.inf


@contextmanager
def counted(task: GivenUnits) -> Iterator[list[int]]:
    """Note whose update is computed alone."""
    asked: list[int] = []

    def update(parameters: Tensors, one: Unit, round: int) -> Update:
        asked.append(one.key)
        return GivenUnits.update(task, parameters, one, round)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "update", update)
        yield asked
