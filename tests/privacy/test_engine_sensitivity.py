"""No engine lets a user move the sum by more than what the noise covers, fast arithmetic or not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BloomConfig, BloomForCausalLM, PreTrainedModel

from fedsim.clients.engine_choice import Auto
from fedsim.clients.engines.clipped_sums import sum_of_rows
from fedsim.clients.engines.cross_entropy import Batch, losses_and_gradient
from fedsim.clients.engines.per_example import chunks
from fedsim.clients.engines.per_example.batched import BatchedEngine
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.engines.steepness import MOST, steepness
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clients.models import cpu_kernels
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import Clip, FlatClip, NormalisedClip, PerLayerClip, layers_of
from fedsim.config import ModelConfig
from fedsim.execution import Engine, Unit
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.noise.tolerance import ROUNDING_TOLERANCE
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import DEVICE, Log, Patch, small_config
from tests.contracts.layer_samples import (
    VOCABULARY,
    GivenUnits,
    Opened,
    gpt2,
    network,
    opened,
    sum_of,
)
from tests.contracts.test_engines import ENGINES

BOUND = 0.01  # far below any user's norm: everybody is clipped
NUM_UNITS, CHUNK = 400, 64
UNPROVED = 16.0 * 2.0**-24  # of a bound a unit: what `fedsim.noise` sets aside for it

CLIPS: dict[str, Callable[[Tensors], Clip]] = {
    "flat": lambda _: FlatClip(l2_clip_norm=BOUND),
    "per-layer": lambda layout: PerLayerClip.evenly(BOUND, layers_of(layout)),
    "normalised": lambda _: NormalisedClip(clip=FlatClip(l2_clip_norm=BOUND)),
}


@pytest.fixture(scope="module")
def on_device(speeches: Path) -> Materials:
    config = small_config(speeches)
    return load_materials(config.seed, config.data, config.model, DEVICE)


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("make_clip", CLIPS.values(), ids=CLIPS)
def test_a_user_moves_the_sum_by_at_most_the_bound(
    on_device: Materials,
    make_engine: Callable[[LanguageModel], Engine],
    make_clip: Callable[[Tensors], Clip],
) -> None:
    """Alone, exactly; among others, up to the share that the noise has for the sum's rounding."""
    materials, task = on_device, AveragedGradient(on_device, group_size=3)
    start = materials.model.initial_parameters()
    parameters = {name: value.to(DEVICE) for name, value in start.items()}
    clip, engine = make_clip(parameters), make_engine(materials.model)
    users = np.arange(12)
    everybody = engine(task, parameters, users, clip, 0)
    for user in users[::5]:
        alone = l2_norm(engine(task, parameters, np.array([user]), clip, 0).values)
        assert 0.99 * clip.bound <= alone <= clip.bound
        others = engine(task, parameters, users[users != user], clip, 0)
        moved = l2_norm({k: everybody.values[k] - others.values[k] for k in others.values})
        assert 0.99 * clip.bound <= moved <= clip.bound * (1.0 + ROUNDING_TOLERANCE)


def test_a_worker_with_less_memory_free_gives_the_same_sum(
    on_device: Materials, monkeypatch: Patch, caplog: Log
) -> None:
    """It may take another engine, and a newcomer decides which worker computes a user."""
    task = AveragedGradient(on_device, group_size=3)
    start = on_device.model.initial_parameters()
    parameters = {name: value.to(DEVICE) for name, value in start.items()}
    clip, users, sums = FlatClip(l2_clip_norm=BOUND), np.arange(12), []
    caplog.set_level("INFO")
    for free, tokens in ((2**31, 2000.0), (4096, 2000.0), (4096, 72.0)):
        monkeypatch.setattr(chunks, "memory_budget", lambda _device, free=free: free)
        auto = Auto(on_device.model, tokens)
        sums.append(auto(task, parameters, users, clip, 0).values)
    for other in sums[1:]:
        moved = l2_norm({name: other[name] - value for name, value in sums[0].items()})
        assert moved <= UNPROVED * len(users) * BOUND
    assert re.findall(r"engine (\w+),", caplog.text) == ["materialised", "loop", "ghost"]


def unit_of(key: int, length: int, seed: int) -> Unit:
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(0, VOCABULARY, (2, length)))
    return Unit(key, tokens, torch.tensor([length, length - 2]))


@pytest.mark.parametrize("make", [materialised, ghost])
@pytest.mark.parametrize("factor", [3.0, 5.0, 8.0, 16.0, 20.0])
def test_a_steep_network_makes_no_more_of_who_shares_a_pass(
    make: Callable[..., BatchedEngine], factor: float, monkeypatch: Patch
) -> None:
    """A recurrence with large weights makes any distance of a last bit, which the pass decides."""
    model, start = network("lstm", torch.float32)
    monkeypatch.setattr(model, "sequence_length", 40)
    parameters = {key: value * (factor if value.ndim > 1 else 1.0) for key, value in start.items()}
    clip = FlatClip(l2_clip_norm=BOUND)
    there, away = make(model), make(model)  # whom an engine meets first decides nothing either
    summed = partial(sum_of, model, parameters, clip)
    for others in (1, 5, 14):
        units = [unit_of(key + 1, 40, key) for key in range(others)]
        without = summed(away, units)
        for length in (3, 9):
            newcomer = replace(unit_of(0, length, NUM_UNITS), weight=0.0)
            with_it = summed(there, [newcomer, *units])
            moved = {key: value - without[key] for key, value in with_it.items()}
            assert l2_norm(moved) <= UNPROVED * others * BOUND


wide_gpt2 = partial(gpt2, n_positions=64, n_embd=256, n_head=4, initializer_range=0.16)


def bloom() -> PreTrainedModel:
    config = BloomConfig(
        vocab_size=VOCABULARY, hidden_size=256, n_layer=2, n_head=8, hidden_dropout=0.0,
        attention_dropout=0.0, bos_token_id=1, eos_token_id=2, initializer_range=0.08,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return BloomForCausalLM(config)


@pytest.mark.parametrize("by_onednn", [False, True], ids=["by MKL", "by oneDNN"])
@pytest.mark.parametrize("make", [materialised, ghost])
@pytest.mark.parametrize(
    ("network_of", "attention", "lengths", "newcomers"),
    [
        (wide_gpt2, "eager", [64, 64], [64]),
        (wide_gpt2, "eager", [16] * 11, [16, 9]),
        (bloom, "eager", [8], [3, 8, 40]),
        (wide_gpt2, "sdpa", [16] * 11, [16, 9]),
        # torch cuts a row of 192 positions otherwise than a shorter one, and one of 768.
        (partial(wide_gpt2, n_positions=800, n_layer=1), "sdpa", [33, 200, 780], [191, 193, 769]),
    ],
)
def test_who_fills_a_pass_of_wide_layers_moves_the_others_by_what_is_stated(
    make: Callable[..., BatchedEngine],
    network_of: Callable[[], PreTrainedModel],
    attention: Literal["eager", "sdpa"],
    lengths: list[int],
    newcomers: list[int],
    by_onednn: bool,
    monkeypatch: Patch,
) -> None:
    """Products of many terms are summed otherwise for few rows: up to 191, and up to 15."""
    monkeypatch.setattr(cpu_kernels, "is_faster", lambda: by_onednn)
    if not rows_keep_their_bits(by_onednn):
        pytest.skip("this processor rounds a row otherwise beside any other number of rows")
    torch.manual_seed(0)
    model = opened(network_of(), ModelConfig(attention=attention), 64)
    parameters, clip = model.initial_parameters(), FlatClip(l2_clip_norm=1e-3)
    assert steepness(model, parameters) < MOST
    units = [row_of(key + 1, length, 0) for key, length in enumerate(lengths)]
    there, away = make(model), make(model)  # whom an engine meets first decides nothing either
    summed = partial(sum_of, model, parameters, clip)
    without = summed(away, units)
    for length in newcomers:
        newcomer = row_of(0, length, NUM_UNITS)
        with_it, alone = summed(there, [newcomer, *units]), summed(away, [newcomer])
        rest = {name: with_it[name] - without[name] - alone[name] for name in without}
        most = 2.0 * 2.0**-24 if make is materialised else UNPROVED  # the sum's own rounding
        assert l2_norm(rest) <= most * len(units) * clip.bound


@cache
def rows_keep_their_bits(by_onednn: bool) -> bool:
    """Return whether a row of a product is the same beside 191 rows and more.

    Of the products of a process in which `is_faster` says `by_onednn`.
    """
    source = torch.Generator().manual_seed(0)
    for terms, size in itertools.product((VOCABULARY, 256, 768, 1024), repeat=2):
        rows = torch.randn(1024, terms, generator=source)
        weights = torch.randn(terms, size, generator=source)
        for turned in (weights, weights.T.contiguous().T):
            with cpu_kernels.onednn_products({}):
                products = [(rows[:count] @ turned)[:192] for count in (192, 256, 384, 704, 1024)]
            if not all(torch.equal(product, products[0]) for product in products):
                return False
    return True


def row_of(key: int, length: int, seed: int) -> Unit:
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(0, VOCABULARY, (1, length)))
    return Unit(key, tokens, torch.tensor([length]))


@pytest.mark.parametrize("alike", [True, False], ids=["all alike", "all different"])
@pytest.mark.parametrize("make", [materialised, ghost])
def test_a_newcomer_who_shifts_every_chunk_moves_the_others_by_what_is_stated(
    make: Callable[..., BatchedEngine], alike: bool, monkeypatch: Patch
) -> None:
    """One in front moves the last unit of each chunk to the next; all alike are off alike.

    Whether the newcomer's texts are shorter than the others', as long or longer.
    """
    model, parameters = network("gpt2 tied", torch.float32)
    if make is ghost:  # chunks of one pass
        monkeypatch.setattr("fedsim.clients.engines.per_example.chunks.CPU_TOKENS", CHUNK * 2 * 8)
    num_bytes = 2 * CHUNK * sum(value.nbytes for value in parameters.values())
    engine = make(model) if make is ghost else make(model, num_bytes)
    chunks = []
    add_chunk = BatchedEngine._add_chunk

    def counted(self: BatchedEngine, total: object, units: list[Unit]) -> object:
        chunks.append(len(units))
        return add_chunk(self, total, units)  # type: ignore[arg-type]

    monkeypatch.setattr(BatchedEngine, "_add_chunk", counted)
    lengths = np.random.default_rng(0).integers(4, 10, NUM_UNITS).tolist()
    units = [
        unit_of(key + 1, 8, 0) if alike else unit_of(key + 1, lengths[key], key)
        for key in range(NUM_UNITS)
    ]
    clip = FlatClip(l2_clip_norm=BOUND)
    summed = partial(sum_of, model, parameters, clip, engine)
    without = summed(units)
    for length in (3, 8, 11):
        newcomer = unit_of(0, length, NUM_UNITS)
        chunks.clear()
        with_it, alone = summed([newcomer, *units]), summed([newcomer])
        assert len(chunks) > 4
        moved = l2_norm({name: with_it[name] - without[name] for name in without})
        assert moved <= BOUND * (1.0 + ROUNDING_TOLERANCE)
        rest = l2_norm({name: with_it[name] - without[name] - alone[name] for name in without})
        assert 0.0 < rest <= 0.25 * UNPROVED * NUM_UNITS * BOUND


@pytest.mark.parametrize(("num_units", "texts", "word"), [(8, 8, 7), (24, 8, 7), (7, 9, 50)])
def test_users_who_repeat_one_word_are_moved_by_less_than_a_product_may(
    num_units: int, texts: int, word: int
) -> None:
    """All terms of `ghost`'s one product are alike, so each sum is off the same way.

    Where one chunk had them all, they were moved by 24 shares a user, and by 27 in the last case.
    The 48 that are for the adding of formed rows are not used where there is one product.
    """
    torch.manual_seed(0)
    network = gpt2(vocab_size=200, n_positions=128, n_embd=128, n_layer=1, n_head=4)
    model = opened(network, length=128)
    parameters, clip = model.initial_parameters(), FlatClip(l2_clip_norm=1e-3)
    lengths, text = torch.full((texts,), 64), torch.full((texts, 64), word)
    units = [Unit(key, text, lengths) for key in range(1, num_units + 1)]
    newcomer = replace(unit_of(0, 100, NUM_UNITS), weight=0.0)
    without, with_it = (
        sum_of(model, parameters, clip, ghost(model), given)
        for given in (units, [newcomer, *units])
    )
    rest = l2_norm({name: with_it[name] - without[name] for name in without})
    assert 0.0 < rest <= 62.0 * 2.0**-24 * num_units * clip.bound


def test_a_sum_of_rows_is_within_its_bound_of_the_exact_one() -> None:
    """Every row rounds up, by a quarter of the last place: what a plain product loses."""
    rows = torch.full((2048, 1), 0.75 * 2.0**-23, device=DEVICE)
    rows[0] = 1.5
    rows = rows.expand(-1, 64).contiguous()
    factors = torch.ones(len(rows), device=DEVICE)
    exact = rows.double().sum(dim=0)
    bound = 24.0 * 2.0**-24 * float(torch.linalg.vector_norm(rows.double(), dim=1).sum())
    found = sum_of_rows(factors, rows)
    assert found.dtype == torch.float64
    assert float(torch.linalg.vector_norm(found - exact)) <= bound
    # Of rows that are all of the clip's length, as many as 2048 in one product are off by more.
    same = torch.full((2048, 64), 0.1, device=DEVICE)
    exact = same.double().sum(dim=0)
    share = float(torch.linalg.vector_norm(same.double(), dim=1).sum())
    assert float(torch.linalg.vector_norm(sum_of_rows(factors, same) - exact)) / share < 2.0**-22


@pytest.mark.parametrize("size", [0.0, 5.0, 15.0, 30.0])
def test_a_text_known_by_heart_keeps_the_digits_of_its_gradient(size: float) -> None:
    """Softmax − 1, where the softmax is all but 1, is the last bit of a number near 1.

    The shape of the pass decides that bit, and a clip scales it up with the small gradient.
    """
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 50, device=DEVICE)
    tokens = torch.randint(50, (3, 4), device=DEVICE)
    batch = Batch(tokens, torch.full((3, 4), 0.25, device=DEVICE))
    following = tokens.roll(-1, dims=1)[..., None]
    logits.scatter_add_(-1, following, torch.full((3, 4, 1), size, device=DEVICE))
    _, found = losses_and_gradient(logits, batch)
    exact = torch.softmax(logits.double(), dim=-1).scatter_(-1, following, 0.0)
    exact.scatter_(-1, following, -exact.sum(dim=-1, keepdim=True)).mul_(0.25)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0.0)


class ScoresWords(nn.Module):
    """Frozen vectors of words, and the weights that score the next word by them.

    Words 1 and 2 have opposite vectors, word 2's 64 times the longer; words 0 and 9 have zeros.
    """

    def __init__(self, size: float) -> None:
        super().__init__()
        self.words, self.output = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY, bias=False)
        vectors = torch.zeros(VOCABULARY, 8)
        vectors[3:, 0] = 0.45
        vectors[9] = 0.0
        vectors[1, 0], vectors[2, 0] = size, -64.0 * size
        self.words.weight.data.copy_(vectors)
        self.output.weight.data.zero_()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.output(self.words(tokens)))


@pytest.mark.parametrize(
    ("size", "long", "others"),
    [(1e8, 5, 25), (1e6, 5, 25), (1e5, 5, 25), *((55.0, long, long + 2) for long in (1, 2, 8, 16))],
)
def test_terms_that_cancel_in_a_network_lose_nobody_elses(
    size: float, long: int, others: int
) -> None:
    """The terms of one user's two examples, of 2 and of 65 tokens, cancel; they are two passes.

    What is left of them is the user's own; nobody else may be rounded to the last bit of the terms.
    Of the engines only `ghost` adds one user's terms to another's before the first user's cancel.
    Added together, terms of 55 bounds moved few others by 1.7e-4 of a bound.
    """
    torch.manual_seed(0)
    weights = ("output.weight",)
    module = ScoresWords(size)
    model = cast(OpenModel, Opened(module, weights))
    parameters = model.initial_parameters()
    tokens = torch.zeros(2, 65, dtype=torch.int64)
    tokens[0, 0], tokens[1, 0], tokens[0, 1] = 1, 2, 9
    tokens[1, 1] = 9
    units = [Unit(0, tokens, torch.tensor([2, 65]))]
    for key in range(1, others + 1):  # users of 2 examples of 65 tokens at most: one chunk
        tokens = torch.randint(10, VOCABULARY, (2, 2 if key > long else 65))
        tokens[:, 1] = 9
        units.append(Unit(key, tokens, torch.full((2,), tokens.shape[1])))
    task = GivenUnits(model, units)
    clip = FlatClip(l2_clip_norm=1.0)
    engine = ghost(model)
    everybody, rest, own = (
        engine(task, parameters, keys, clip, 0).values
        for keys in (task.keys, task.keys[1:], task.keys[:1])
    )
    moved = {name: everybody[name] - rest[name] - own[name] for name in weights}
    assert l2_norm(own) <= clip.bound
    assert l2_norm(moved) <= ROUNDING_TOLERANCE * clip.bound


def test_no_user_decides_that_everybody_is_computed_otherwise(monkeypatch: Patch) -> None:
    """Layer rules are verified on made-up tokens: the loop clips with another margin."""
    torch.manual_seed(0)
    module = ScoresWords(1e25)
    model = cast(OpenModel, Opened(module, ("output.weight",)))
    parameters = model.initial_parameters()
    newcomer = Unit(0, torch.tensor([[1, 9, 0, 0]]), torch.tensor([4]))
    others = [
        Unit(key, torch.randint(10, VOCABULARY, (1, 3)), torch.tensor([3])) for key in range(1, 9)
    ]
    task = GivenUnits(model, [newcomer, *others])
    monkeypatch.setattr(BatchedEngine, "_by_loop", None)
    total = ghost(model)(task, parameters, task.keys, FlatClip(l2_clip_norm=1.0), 0)
    assert total.num_units == 9


class RefusesVectorisation(nn.Module):
    """A layer without a rule, which torch cannot vectorise: of texts of some lengths, or of any."""

    def __init__(self, lengths: range) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 8)
        self.scale = nn.Parameter(torch.ones(VOCABULARY))
        self.lengths = lengths

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if (
            tokens.shape[1] in self.lengths
            and torch._C._functorch.maybe_current_level() is not None
        ):
            raise RuntimeError("no batching rule for this")
        return torch.Tensor(self.words(tokens) @ self.words.weight.T * self.scale)


def test_no_text_decides_that_everybody_is_computed_one_by_one(caplog: Log) -> None:
    """Whether vmap can is tried on made-up tokens; a text that it cannot take ends the run."""
    torch.manual_seed(0)
    units = [Unit(key, torch.randint(VOCABULARY, (1, 4)), torch.tensor([4])) for key in range(4)]
    newcomer = Unit(4, torch.ones(1, 5, dtype=torch.int64), torch.tensor([5]))
    some, every = range(5, 6), range(1, 99)
    for lengths, name in ((some, "vmap"), (every, "loop")):
        model = cast(OpenModel, Opened(RefusesVectorisation(lengths)))
        parameters = model.initial_parameters()
        task, clip = GivenUnits(model, [*units, newcomer]), FlatClip(l2_clip_norm=1.0)
        engine = Auto(model, tokens_per_unit=8)
        caplog.clear()
        with caplog.at_level("INFO"):
            before = engine(task, parameters, task.keys[:4], clip, 0)
        assert f"engine {name}" in caplog.text
        if name == "loop":
            assert "and vmap cannot: no batching rule for this" in caplog.text
            assert engine(task, parameters, task.keys, clip, 0).num_units == 5
            continue
        with pytest.raises(RuntimeError, match="no batching rule for this"):
            engine(task, parameters, task.keys, clip, 0)
        after = engine(task, parameters, task.keys[:4], clip, 0)
        expected = VmapEngine(model)(task, parameters, task.keys[:4], clip, 0)
        for place, value in expected.values.items():
            assert torch.equal(before.values[place], value)
            assert torch.equal(after.values[place], value)
