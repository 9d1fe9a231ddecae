"""Where the backward pass of bfloat16 logits begins, and how much goes through it at once."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch.autograd.graph import GradientEdge

from fedsim.clients.engines.cross_entropy import Batch
from fedsim.clients.engines.pass_shape import PassShape
from fedsim.clients.engines.per_example import capture, chunks
from fedsim.clients.engines.per_example.batched import Buffers
from fedsim.clients.engines.per_example.capture import OpenModel, find_layers, run
from fedsim.clients.engines.per_example.chunks import pass_bytes
from fedsim.clients.engines.per_example.gradient_terms import Segments, Term, Total
from fedsim.clients.engines.per_example.materialised import Materialised
from fedsim.clients.models.checkpointing import checkpointed
from fedsim.clients.models.mixed_precision import in_precision
from fedsim.execution import Unit
from fedsim.tensors import zeros_like
from tests.contracts.layer_samples import VOCABULARY, network


def narrow(name: str) -> tuple[OpenModel, dict[str, torch.Tensor]]:
    model, parameters = network(name, torch.float32)
    return cast(OpenModel, in_precision(model, "bfloat16")), dict(parameters)


@pytest.mark.parametrize("name", ["gpt2 tied", "lstm", "gemma2"])
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
            if isinstance(values, torch.Tensor):
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
    shape = PassShape(64, steps=1, one_size=True)
    assert len(chunks.first_chunk(units(*counts), limits, shape, one_pass=False)) == expected
    of_two_lengths = [*units(*counts), *units(1, length=40)]
    mixed = sorted(of_two_lengths, key=lambda unit: -unit.tokens.shape[1])
    assert len(chunks.first_chunk(mixed, limits, shape, one_pass=False)) == 10


def test_a_passes_bytes_are_what_autograd_keeps() -> None:
    """A function of network and length alone; with activations that longer rows have more of."""
    model, parameters = narrow("gpt2 untied")
    once, of_token = pass_bytes(model, parameters, 8)
    assert pass_bytes(model, parameters, 8) == (once, of_token)
    assert of_token > 100 + chunks._OF_LOGITS * VOCABULARY
    assert once < 2 * sum(value.nbytes for value in parameters.values())


@pytest.mark.parametrize(("name", "blocks"), [("gpt2 untied", 2), ("llama", 2), ("gemma2", 1)])
def test_of_blocks_that_are_computed_again_one_is_counted(name: str, blocks: int) -> None:
    model, parameters = network(name, torch.float32)
    again = cast(OpenModel, in_precision(checkpointed(model, wanted=True), "bfloat16"))
    _, of_token = pass_bytes(cast(OpenModel, in_precision(model, "bfloat16")), parameters, 8)
    _, found = pass_bytes(again, parameters, 8)
    logits = chunks._OF_LOGITS * VOCABULARY
    assert (of_token - logits) / blocks < found - logits < 1.5 * of_token - logits


def test_vectors_of_a_pass_are_added_once_each_time_their_layer_is_called() -> None:
    """Units with other numbers of sequences, in two passes; a layer that is called twice in one."""
    layout = {"a": torch.zeros(5), "b": torch.zeros(5), "c": torch.zeros(3)}
    gradients = Materialised(Buffers(), layout, 3, room=0)
    expected = torch.zeros(3, 13, dtype=torch.float64)
    places = {"a": slice(0, 5), "b": slice(5, 10), "c": slice(10, 13)}
    for counts, names in (([2, 0, 1], "abca"), ([0, 3, 2], "cba")):
        segments = Segments(counts, whole=False)
        gradients.start_pass(segments)
        owners = segments.unit_of_row(torch.device("cpu"))
        for name in names:
            values = torch.randn(sum(counts), 4, len(layout[name]))
            gradients(name, Total(values))
            expected[:, places[name]].index_add_(0, owners, values.sum(dim=1).double())
    squares = [expected[:, place].square().sum(dim=1) for place in places.values()]
    torch.testing.assert_close(
        gradients.squares(), torch.stack(squares, dim=1), rtol=1e-5, atol=1e-5
    )
    factors = torch.eye(3, dtype=torch.float64)[:, :, None].expand(3, 3, len(layout))
    of_units = [zeros_like(layout) for _ in factors]
    for sums, factor in zip(of_units, factors, strict=True):
        gradients.add_weighted(sums, factor)
    found = torch.stack([torch.cat([one[name] for name in layout]) for one in of_units])
    torch.testing.assert_close(found.float(), expected.float())
