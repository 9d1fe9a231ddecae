"""Where the backward pass of bfloat16 logits begins, and how much goes through it at once."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch.autograd.graph import GradientEdge

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.engines.cross_entropy import Batch
from fedsim.clients.engines.pass_shape import PassShape
from fedsim.clients.engines.per_example import batched, capture, chunks, row_bits
from fedsim.clients.engines.per_example import materialised as per_example
from fedsim.clients.engines.per_example.batched import Buffers
from fedsim.clients.engines.per_example.capture import OpenModel, find_layers, run
from fedsim.clients.engines.per_example.gradient_terms import Segments, Term, Total
from fedsim.clients.engines.per_example.materialised import _Vectors, materialised
from fedsim.clients.engines.per_example.row_bits import pass_bytes
from fedsim.clients.models.checkpointing import checkpointed
from fedsim.clients.models.mixed_precision import in_precision
from fedsim.clipping import FlatClip
from fedsim.execution import Unit
from tests.contracts.layer_samples import VOCABULARY, GivenUnits, network


def narrow(name: str) -> tuple[OpenModel, dict[str, torch.Tensor]]:
    model, parameters = network(name, torch.float32)
    return cast(OpenModel, in_precision(model, "bfloat16")), dict(parameters)


@pytest.mark.parametrize("name", ["gpt2 tied", "gpt2 untied", "llama", "lstm", "gemma2"])
def test_its_terms_are_those_of_the_logits_own_gradient_to_the_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, parameters = narrow(name)
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (3, 6))
    batch = Batch(tokens, torch.rand(3, 6).index_fill(1, torch.tensor([5]), 0.0))

    honest, begun = capture._beginning, []

    def terms() -> list[tuple[str, Term]]:
        found: list[tuple[str, Term]] = []
        layers = find_layers(model)
        run(model, layers, parameters, batch, lambda name, term: found.append((name, term)))
        return found

    def early(logits: torch.Tensor) -> tuple[torch.Tensor | GradientEdge, torch.dtype | None]:
        begun.append(honest(logits))
        return begun[-1]

    monkeypatch.setattr(capture, "_beginning", early)
    rounded_at_once = terms()
    monkeypatch.setattr(capture, "_beginning", lambda logits: (logits, None))
    rounded_by_autograd = terms()
    assert [type(where) for where, _ in begun] == [GradientEdge]
    assert [key for key, _ in rounded_at_once] == [key for key, _ in rounded_by_autograd]
    for (_, one), (_, other) in zip(rounded_at_once, rounded_by_autograd, strict=True):
        for side, values in vars(one).items():
            if isinstance(values, torch.Tensor) and side != "most_left":
                assert torch.equal(values, getattr(other, side))


def test_a_hooked_cast_is_not_passed_by() -> None:
    """Its hook is what a layer rule gets its gradient from."""
    scores = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True) * 2.0
    logits = scores.float()
    where, dtype = capture._beginning(logits)
    assert (type(where), dtype) == (GradientEdge, torch.bfloat16)
    logits.register_hook(lambda _: None)  # type: ignore[no-untyped-call]
    assert capture._beginning(logits) == (logits, None)
    wide = torch.ones(2, 3, requires_grad=True) * 2.0
    assert capture._beginning(wide) == (wide, None)


def units(*counts: int, length: int = 30) -> list[Unit]:
    return [
        Unit(key, torch.ones(count, length, dtype=torch.int64), torch.full((count,), length))
        for key, count in enumerate(counts)
    ]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([3] * 20, 8), ([5] * 20, 10), ([12, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], 10), ([3] * 10, 10)],
)
def test_a_chunk_fills_its_passes_where_half_of_it_can(counts: list[int], expected: int) -> None:
    limits = chunks.Limits(tokens=384, units=10, num_bytes=0, bytes_per_unit=1)
    shape = PassShape(64, sizes={32: 12})
    assert len(chunks.first_chunk(units(*counts), limits, shape, one_pass=False)) == expected
    of_two_lengths = [*units(*counts), *units(1, length=40)]
    mixed = sorted(of_two_lengths, key=lambda unit: -unit.tokens.shape[1])
    shape = PassShape(64, sizes={32: 12, 64: 6})
    assert len(chunks.first_chunk(mixed, limits, shape, one_pass=False)) == 10


@pytest.mark.parametrize("num_bytes", [0, 10**6, 10**9, 10**12])
@pytest.mark.parametrize("bytes_per_unit", [0, 10**3, 10**8])
@pytest.mark.parametrize(("device", "most"), [("cpu", 4096), ("cuda", 32768)])
def test_a_pass_and_its_units_fit_the_memory(
    num_bytes: int, bytes_per_unit: int, device: str, most: int
) -> None:
    """On a CPU small passes are no slower, and a few users would fill little of a large one."""
    found = chunks.limits_for_passes(num_bytes, bytes_per_unit, 1000, 100, torch.device(device))
    taken = found.tokens * 1000 + found.units * bytes_per_unit
    always = found.units == 1 or found.tokens == 1  # tried whether it fits or not
    assert always or bytes_per_unit == 0 or taken <= num_bytes
    assert found.tokens % 100 == 0 or found.tokens < 100
    assert found.tokens <= most
    assert num_bytes < 10**9 or found.tokens > most // 2


@pytest.mark.parametrize(
    ("rows_per_unit", "rows", "units"),
    [
        (None, 128, 19),
        (16, 128, 19),  # sixteen of the units fill two passes
        (4, 96, 23),
        (2, 48, 29),
        (1, 32, 31),
    ],
)
def test_large_gradients_of_users_with_little_text_have_passes_that_they_fill(
    rows_per_unit: int | None, rows: int, units: int
) -> None:
    """The numbers of 350 M parameters on a GPU of 80 GB: a user is as large as 7 rows."""
    found = chunks.limits_for_passes(
        56 * 10**9, 1_419_000_000, 1_540_000, 128, torch.device("cuda"), rows_per_unit=rows_per_unit
    )
    assert (found.tokens, found.units) == (rows * 128, units)
    if rows_per_unit is not None:
        users = [Unit(key, *_rows(rows_per_unit)) for key in range(64)]
        shape = PassShape(128, sizes={128: rows})
        chunk = chunks.first_chunk(users, found, shape, one_pass=False)
        taken = len(chunk) * rows_per_unit
        assert taken >= 0.9 * math.ceil(taken / rows) * rows


@pytest.mark.parametrize(("name", "few"), [("auto", 144.0), ("materialised", 8.0)])
def test_the_engine_of_a_run_makes_passes_by_what_its_users_bring(
    name: str, few: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty gradients fit the memory: users with few tokens fill a smaller pass than others."""
    model, parameters = narrow("gpt2 untied")
    memory = 20 * sum(value.nbytes for value in parameters.values())
    monkeypatch.setattr(chunks, "public_budget", lambda *_: memory)
    monkeypatch.setattr(batched, "pass_bytes", lambda *_: (0, memory // 2000))
    task, tokens = a_text(model), []
    for brings in (few, 8000.0):
        engine: Any = choose_engine(name, task, model, brings)
        engine(task, parameters, task.keys, FlatClip(l2_clip_norm=1.0), 0)
        tokens.append(getattr(engine, "_engine", engine)._limits.tokens)
    assert 0 < tokens[0] < tokens[1]


def _rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and lengths of so many examples of 128 tokens."""
    return torch.zeros(count, 128, dtype=torch.int64), torch.full((count,), 128)


def test_a_passes_bytes_are_what_autograd_keeps() -> None:
    """A function of network and length alone; with activations that longer rows have more of."""
    model, parameters = narrow("gpt2 untied")
    once, of_token = pass_bytes(model, parameters, 8)
    assert pass_bytes(model, parameters, 8) == (once, of_token)
    assert of_token > 100 + row_bits._OF_LOGITS * VOCABULARY
    assert once < 2 * sum(value.nbytes for value in parameters.values())


@pytest.mark.parametrize(("name", "blocks"), [("gpt2 untied", 2), ("llama", 2), ("gemma2", 1)])
def test_of_blocks_that_are_computed_again_one_is_counted(name: str, blocks: int) -> None:
    model, parameters = network(name, torch.float32)
    again = cast(OpenModel, in_precision(checkpointed(model, wanted=True), "bfloat16"))
    _, of_token = pass_bytes(cast(OpenModel, in_precision(model, "bfloat16")), parameters, 8)
    _, found = pass_bytes(again, parameters, 8)
    logits = row_bits._OF_LOGITS * VOCABULARY
    assert (of_token - logits) / blocks < found - logits < 1.5 * of_token - logits


def a_text(model: OpenModel) -> GivenUnits:
    return GivenUnits(model, [Unit(0, torch.arange(8)[None] % VOCABULARY, torch.tensor([8]))])


def test_weights_take_no_room_of_a_chunk_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are of one chunk, not of all there are: a large model would leave none."""
    model, parameters = narrow("gpt2 untied")
    engine = materialised(model)
    monkeypatch.setattr(batched, "pass_bytes", lambda *_: (chunks.CPU_BYTES, 1000))
    task = a_text(model)
    engine(task, parameters, task.keys, FlatClip(l2_clip_norm=1.0), 0)
    assert engine._row_bits is not None and min(engine._row_bits.sizes.values()) > 1


def test_a_layers_extra_state_is_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    model, parameters = narrow("gpt2 untied")
    monkeypatch.setattr(type(model.module), "get_extra_state", lambda _self: {"scale": 1.0})
    task = a_text(model)
    total = materialised(model)(task, parameters, task.keys, FlatClip(l2_clip_norm=1.0), 0)
    assert total.num_units == 1


def test_vectors_of_a_pass_are_added_once_each_time_their_layer_is_called() -> None:
    """Units with other numbers of sequences, in two passes; a layer that is called twice in one."""
    layout = {"a": torch.zeros(5), "b": torch.zeros(5), "c": torch.zeros(3)}
    vectors, expected = _Vectors(Buffers(), layout, 3), torch.zeros(3, 13, dtype=torch.float64)
    places = {"a": slice(0, 5), "b": slice(5, 10), "c": slice(10, 13)}
    for counts, names in (([2, 0, 1], "abca"), ([0, 3, 2], "cb")):
        segments = Segments(counts, whole=False)
        owners = segments.unit_of_row(torch.device("cpu"))
        for name in names:
            values = torch.randn(sum(counts), 4, len(layout[name]))
            vectors.add(name, Total(values), segments)
            expected[:, places[name]].index_add_(0, owners, values.sum(dim=1).double())
        vectors.end_pass(segments)
    of_units = [
        dict(vectors.weighted_sum(dict.fromkeys(layout, torch.eye(3, dtype=torch.float64)[unit])))
        for unit in range(3)
    ]
    found = torch.stack([torch.cat([one[name] for name in layout]) for one in of_units])
    torch.testing.assert_close(found.float(), expected.float())


def test_a_units_vectors_have_the_same_bits_alone_and_beside_others() -> None:
    layout, counts = {"a": torch.zeros(37), "b": torch.zeros(37)}, [3, 3, 5, 1]
    values = {name: torch.randn(sum(counts), 7, 37) for name in layout}

    def summed(units: list[int]) -> list[dict[str, torch.Tensor]]:
        vectors = _Vectors(Buffers(), layout, len(units))
        segments = Segments([counts[unit] for unit in units], whole=True)
        starts = [sum(counts[:unit]) for unit in units]
        rows = torch.cat(
            [torch.arange(s, s + counts[u]) for s, u in zip(starts, units, strict=True)]
        )
        for name, terms in values.items():
            vectors.add(name, Total(terms[rows]), segments)
        vectors.end_pass(segments)
        weights = torch.eye(len(units), dtype=torch.float64)
        return [dict(vectors.weighted_sum(dict.fromkeys(layout, row))) for row in weights]

    together = summed([0, 1, 2, 3])
    for unit, beside in enumerate(together):
        (alone,) = summed([unit])
        assert all(beside[name].equal(alone[name]) for name in layout)


def test_vectors_are_widened_some_units_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = {"a": torch.zeros(5), "b": torch.zeros(5), "c": torch.zeros(3), "d": torch.zeros(2, 2)}
    vectors = _Vectors(Buffers(), layout, 7)
    factors = {name: torch.rand(7, dtype=torch.float64) for name in layout}
    segments = Segments([1] * 7, whole=True)
    values = {name: torch.randn(7, 1, len(layout[name])) for name in "abc"}
    for name, value in values.items():
        vectors.add(name, Total(value), segments)
    vectors.end_pass(segments)
    whole = dict(vectors.weighted_sum(factors))
    assert list(whole) == ["a", "b", "c"]
    for name, total in whole.items():
        torch.testing.assert_close(total, factors[name] @ values[name][:, 0].double())
    monkeypatch.setattr(per_example, "_WIDENED", 30)  # three units of the two longer ones
    for name, total in vectors.weighted_sum(factors):
        torch.testing.assert_close(total, whole[name])
