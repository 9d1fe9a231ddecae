"""Short sequences share rows: only a unit's own, and only in networks that keep them apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PretrainedConfig

from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example import batched, capture
from fedsim.clients.engines.per_example.batched import BatchedEngine
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.engines.per_example.packing import ROW_TOKENS, num_rows, placed, row_tokens
from fedsim.clients.engines.per_example.passes import passes
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clipping import FlatClip
from fedsim.evaluation.losses import example_losses, token_ids
from fedsim.execution import Unit
from fedsim.tensors import Tensors
from tests.contracts.definition import CLIP_MARGIN
from tests.contracts.layer_samples import NETWORKS, VOCABULARY, GivenUnits, network, relative

CPU = torch.device("cpu")
IN_ROWS = {
    "gpt2 in rows", "gpt-neo in rows", "llama", "llama lora", "qwen2", "qwen3", "gemma",
    "gemma lora", "gemma2", "gemma3", "cohere", "cohere2", "nemotron",
}  # fmt: skip


def unit(key: int, lengths: list[int], streams: bool = False) -> Unit:
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in enumerate(lengths):
        tokens[row, :length] = (torch.arange(length) * (key + 3) + row) % VOCABULARY
        tokens[row, 2 : length // 2] = ~tokens[row, 2 : length // 2]  # context tokens
    of_rows = torch.arange(len(lengths)) if streams else None
    return Unit(key, tokens, torch.tensor(lengths), streams=of_rows)


some_lengths = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=9), min_size=1, max_size=6
)


@given(some_lengths, st.sampled_from([0, 16, 64]))
def test_everyone_has_a_place_of_their_own(lengths: list[list[int]], most: int) -> None:
    units = [unit(key, of_unit) for key, of_unit in enumerate(lengths)]
    placement = placed(units, most)
    sizes = torch.cat([one.lengths for one in units]).tolist()
    assert len(placement.row_of) == len(placement.start_of) == len(sizes)
    taken = [torch.zeros(int(length), dtype=torch.int64) for length in placement.lengths]
    for row, start, size in zip(placement.row_of, placement.start_of, sizes, strict=True):
        taken[row][start : start + size] += 1
    assert all(bool((places == 1).all()) for places in taken)  # no gap, and nobody over another
    several = torch.bincount(placement.row_of) > 1
    assert bool((placement.lengths[several] <= most).all())
    assert placement.counts.tolist() == [num_rows(one, most) for one in units]


@given(some_lengths)
def test_a_unit_has_rows_of_its_own_whoever_is_beside_it(lengths: list[list[int]]) -> None:
    units = [unit(key, of_unit) for key, of_unit in enumerate(lengths)]
    together = placed(units, ROW_TOKENS)
    first_row = first = 0
    for one in units:
        alone = placed([one], ROW_TOKENS)
        here = slice(first, first + len(one.lengths))
        assert torch.equal(together.row_of[here] - first_row, alone.row_of)
        assert torch.equal(together.start_of[here], alone.start_of)
        first, first_row = here.stop, first_row + len(alone.lengths)
    assert first_row == len(together.lengths)


def test_rows_are_filled_and_long_sequences_stand_alone() -> None:
    placement = placed([unit(0, [10, 70, 54, 30, 34, 5])], ROW_TOKENS)
    assert sorted(placement.lengths.tolist()) == [5, 64, 64, 70]
    assert placed([unit(0, [10, 20])], 0).lengths.tolist() == [10, 20]
    assert placed([unit(0, [10, 54])], ROW_TOKENS).lengths.tolist() == [64]


@pytest.mark.parametrize("name", NETWORKS)
def test_who_shares_rows(name: str) -> None:
    model, parameters = network(name, torch.float32)
    expected = ROW_TOKENS if name in IN_ROWS else 0
    assert row_tokens(model, parameters) == expected
    # The same at any point of the training: a run that is taken up again computes the same bits.
    moved = {key: 0.0 * value for key, value in parameters.items()}
    assert row_tokens(model, moved) == expected


class Altered:
    """A model that does something else with several sequences in a row, or with all."""

    def __init__(self, model: TransformersModel, logits: Callable[..., torch.Tensor]) -> None:
        self.model, self.logits = model, partial(logits, model)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the model has)
        return getattr(self.model, name)


def sees_others(
    model: TransformersModel,
    parameters: Tensors,
    tokens: torch.Tensor,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Positions begin anew, yet everything in front is seen, as in transformers without masks."""
    options = {"attention_mask": torch.ones_like(tokens), "position_ids": positions}
    output = torch.func.functional_call(
        model.module, dict(parameters), (tokens,), options, tie_weights=False
    )
    return torch.Tensor(output.logits)


def sees_others_later(
    model: TransformersModel,
    parameters: Tensors,
    tokens: torch.Tensor,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """As a branch does that begins with zeros."""
    own = model.logits(parameters, tokens, positions)
    name, start = next(iter(model.initial_parameters().items()))
    return own + (parameters[name] - start).abs().max() * own.roll(8, 1)


ALTERED: dict[str, Callable[..., torch.Tensor]] = {
    "sees others": sees_others,
    "sees others later": sees_others_later,
    "ignores positions": lambda model, p, tokens, positions=None: model.logits(p, tokens),
    # Each token by itself: whether sequences are kept apart cannot be told.
    "sees nothing": lambda model, p, tokens, positions=None: model.logits(
        p, tokens.flatten()[:, None]
    ).view(*tokens.shape, -1),
    "says nothing": lambda model, p, tokens, positions=None: 0.0 * model.logits(p, tokens),
    "takes no positions": lambda model, p, tokens: model.logits(p, tokens),
    "fails": lambda model, p, tokens, positions=None: (
        model.logits(p, tokens) if positions is None else p["position_ids"]
    ),
}


@pytest.mark.parametrize("logits", ALTERED.values(), ids=ALTERED)
def test_networks_that_do_not_keep_sequences_apart(logits: Callable[..., torch.Tensor]) -> None:
    model, parameters = network("gpt2 in rows", torch.float32)
    assert row_tokens(model, parameters) == ROW_TOKENS
    assert row_tokens(Altered(model, logits), parameters) == 0


def test_a_network_is_never_tried_beyond_its_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that would break down everything that comes after."""
    model, parameters = network("gpt2 tied", torch.float32)
    longest = 0

    def noted(given: Tensors, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> None:
        nonlocal longest
        longest = max(longest, tokens.shape[1])

    monkeypatch.setattr(model, "logits", noted)
    assert row_tokens(model, parameters) == 0
    assert longest <= 16
    # Where text is one of several things that a network takes, its positions stand further in.
    inner = model.module.config
    outer = PretrainedConfig()
    monkeypatch.setattr(outer, "get_text_config", lambda: inner)
    monkeypatch.setattr(model.module, "config", outer)
    assert row_tokens(model, parameters) == 0
    assert longest <= 16


def test_memory_that_runs_out_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model, parameters = network("gpt2 in rows", torch.float32)

    def without_memory(*_arguments: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr("fedsim.clients.engines.per_example.packing._keeps_apart", without_memory)
    with pytest.raises(torch.OutOfMemoryError):
        row_tokens(model, parameters)


def test_dropout_masks_belong_to_sequences_so_none_share_a_row() -> None:
    lengths = [[5, 6, 7], [8, 9]]
    for streams, expected in ((True, 5), (False, 2)):
        units = [unit(key, of_unit, streams) for key, of_unit in enumerate(lengths)]
        cut = list(passes(units, 4096, CPU, torch.float32, row_tokens=ROW_TOKENS))
        assert sum(len(part.batch.tokens) for part in cut) == expected
        assert all((part.batch.streams is None) is not streams for part in cut)


def test_shares_add_up_to_the_mean_of_each_unit() -> None:
    units = [unit(0, [5, 1, 7]), unit(1, [1]), unit(2, [64, 30, 30, 2])]
    for most in (0, ROW_TOKENS):
        sums = torch.zeros(3, dtype=torch.float64)
        for part in passes(units, 256, CPU, torch.float64, row_tokens=most):
            of_rows = part.batch.shares.sum(dim=1)
            sums.index_add_(0, part.segments.unit_of_row(CPU), of_rows)
        # A sequence of one token predicts nothing, and counts among the others.
        torch.testing.assert_close(sums, torch.tensor([2 / 3, 0.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "make", "max_tokens"),
    [
        *((name, ghost, 64) for name in sorted(IN_ROWS)),
        *(("gpt2 in rows", materialised, size) for size in (64, 200)),
        ("gpt2 in rows", ghost, 4096),
        ("llama lora", materialised, 64),
    ],
)
def test_rows_give_what_sequences_give(
    name: str,
    make: Callable[[OpenModel], BatchedEngine],
    max_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedsim.clients.engines.per_example.chunks.CPU_TOKENS", max_tokens)
    model, parameters = network(name, torch.float32)
    units = [
        *(unit(key, [3 + key, 9, 20, 2, 17 + key, 40]) for key in range(5)),
        unit(5, [64, 33]),
        unit(6, [1, 1, 12]),
        unit(7, [30]),
    ]
    rows: list[int] = []

    def counted(*arguments: object) -> torch.Tensor:
        rows.append(len(arguments[3].tokens))  # type: ignore[attr-defined]
        return capture.run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(batched, "run", counted)
    task = GivenUnits(model, units)
    engine = make(model)
    clip = FlatClip(l2_clip_norm=0.1)
    total = engine(task, parameters, task.keys, clip, 0)
    expected = loop(task, parameters, task.keys, clip, 0)
    assert sum(rows) < sum(len(one.lengths) for one in units)
    assert total.num_gradients == expected.num_gradients
    assert total.loss == pytest.approx(expected.loss, rel=1e-5)
    assert relative(total, expected) < CLIP_MARGIN


def test_logits_of_a_row_are_those_of_its_sequences() -> None:
    model, parameters = network("gpt2 in rows", torch.float64)
    one = unit(0, [9, 30, 14])
    (part,) = passes([one], 4096, CPU, torch.float64, row_tokens=ROW_TOKENS)
    logits = model.logits(parameters, part.batch.tokens, part.batch.positions)
    nats = -logits.log_softmax(-1).gather(-1, part.batch.tokens.roll(-1, 1)[..., None])[..., 0]
    together = (nats * part.batch.shares).sum()
    apart = example_losses(
        model.logits(parameters, token_ids(one.tokens)), one.tokens, one.lengths
    ).mean()
    torch.testing.assert_close(together, apart)
