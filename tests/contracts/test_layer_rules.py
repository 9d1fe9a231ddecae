"""Every layer rule gives what the loop gives, and a wrong one is noticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import cast

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.models.gemma.modeling_gemma import GemmaTextScaledWordEmbedding
from transformers.pytorch_utils import Conv1D

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example import ghost_norms as pairs
from fedsim.clients.engines.per_example import layer_rules as rules
from fedsim.clients.engines.per_example.batched import BatchedEngine
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.gradient_terms import (
    Product,
    Rows,
    Term,
    Total,
)
from fedsim.clients.engines.per_example.layer_rules import Call, Rule
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.models.lstm_recurrence import Recurrence
from fedsim.clipping import Clip, FlatClip, NoClip, NormalisedClip, PerLayerClip, layers_of
from fedsim.estimators import WeightedSum
from fedsim.execution import Unit, Update
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import Log, Patch
from tests.contracts.definition import CLIP_MARGIN
from tests.contracts.layer_samples import (
    EXPERTS,
    NETWORKS,
    ROUNDS_INSIDE,
    VOCABULARY,
    GivenUnits,
    Opened,
    network,
    ragged_units,
    relative,
)

# Units that every network is compared on: of 0, 1, 2 and 4 examples, light and padded ones too.
FIRST = 6

Make = Callable[[OpenModel], BatchedEngine]
ENGINES: dict[str, tuple[Make, Callable[..., bool] | None]] = {
    "materialised": (materialised, None),
    "ghost, chosen": (ghost, None),
    "ghost, direct": (ghost, lambda _terms, _positions: False),
    "ghost, pairs": (ghost, lambda terms, _positions: pairs.ghost_is_cheaper(terms, 0)),
}


@pytest.fixture(params=list(ENGINES))
def make_engine(request: pytest.FixtureRequest, monkeypatch: Patch) -> Make:
    make, cheaper = ENGINES[request.param]
    if cheaper is not None:
        monkeypatch.setattr("fedsim.clients.engines.per_example.ghost.ghost_is_cheaper", cheaper)
    return make


def compare(make: Make, name: str, dtype: torch.dtype, *clips: Clip) -> list[float]:
    """Return how far an engine's sums over the first units are from the loop's, relative."""
    model, parameters = network(name, dtype)
    task, engine, apart = GivenUnits(model, ragged_units()), make(model), []
    for clip in clips:
        total = engine(task, parameters, task.keys[:FIRST], clip, 0)
        expected = by_loop(name, dtype, clip, FIRST)
        same_counts(total, expected)
        apart.append(relative(total, expected))
    return apart


def exactness(name: str) -> float:
    """Return how far apart two ways to compute in float64 may be, relative."""
    return 1e-6 if name in ROUNDS_INSIDE else 1e-10


_BY_LOOP: dict[tuple[str, torch.dtype, str, int | None], WeightedSum] = {}


def by_loop(name: str, dtype: torch.dtype, clip: Clip, first: int | None = None) -> WeightedSum:
    """Return the loop's sum, computed once: it is the same whatever is compared with it."""
    key = (name, dtype, repr(clip), first)
    if key not in _BY_LOOP:
        task, parameters = remembering(name, dtype)
        _BY_LOOP[key] = loop(task, parameters, task.keys[:first], clip, 0)
    return _BY_LOOP[key]


class Remembering(GivenUnits):
    """Computes each unit's update once, at the same parameters, whatever the clip is."""

    def __init__(self, model: OpenModel) -> None:
        super().__init__(model, ragged_units())
        self._known: dict[int, Update] = {}

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        if unit.key not in self._known:
            self._known[unit.key] = super().update(parameters, unit, round)
        return self._known[unit.key]


@cache
def remembering(name: str, dtype: torch.dtype) -> tuple[Remembering, dict[str, torch.Tensor]]:
    model, parameters = network(name, dtype)
    return Remembering(model), parameters


def same_counts(total: WeightedSum, expected: WeightedSum) -> None:
    assert total.num_units == expected.num_units
    assert total.num_gradients == expected.num_gradients
    assert total.num_non_finite == expected.num_non_finite
    assert total.weight == pytest.approx(expected.weight)
    assert total.loss == pytest.approx(expected.loss, rel=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("make_engine", ["materialised", "ghost, chosen"], indirect=True)
def test_rules_are_exact(make_engine: Make, name: str, caplog: Log) -> None:
    clips = FlatClip(l2_clip_norm=0.1), NoClip()
    assert max(compare(make_engine, name, torch.float64, *clips)) < exactness(name)
    clipped, plain = compare(make_engine, name, torch.float32, *clips)
    assert clipped < CLIP_MARGIN
    assert plain < 1e-5
    assert not caplog.records  # nothing was left to the loop


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("make_engine", ["ghost, direct", "ghost, pairs"], indirect=True)
def test_either_way_to_take_norms_is_exact(make_engine: Make, name: str) -> None:
    clip = FlatClip(l2_clip_norm=0.1)
    assert max(compare(make_engine, name, torch.float64, clip)) < exactness(name)


@pytest.mark.parametrize("name", ["gpt2 tied", "lstm"])
def test_all_clips(make_engine: Make, name: str) -> None:
    layers = layers_of(network(name, torch.float64)[1])
    per_layer = PerLayerClip.evenly(0.1, layers)
    clips = per_layer, NormalisedClip(clip=per_layer)
    assert max(compare(make_engine, name, torch.float64, *clips)) < 1e-10
    assert max(compare(make_engine, name, torch.float32, *clips)) < CLIP_MARGIN


@pytest.mark.parametrize("num_bytes", [1, 60_000, 400_000])
def test_small_budgets_give_the_same_sum(make_engine: Make, num_bytes: int) -> None:
    model, parameters = network("gpt2 tied", torch.float64)
    task = GivenUnits(model, ragged_units())
    make = materialised if make_engine is materialised else ghost
    total = make(model, num_bytes)(task, parameters, task.keys, NoClip(), 0)
    assert relative(total, by_loop("gpt2 tied", torch.float64, NoClip())) < 1e-10


@pytest.mark.parametrize("num_tokens", [8, 12, 1000])
def test_units_whole_in_a_pass_or_spread_over_passes(
    make_engine: Make, num_tokens: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("fedsim.clients.engines.per_example.chunks.CPU_TOKENS", num_tokens)
    model, parameters = network("gpt2 tied", torch.float64)
    lengths = torch.tensor([4, 4])
    units = [Unit(key, torch.arange(8).view(2, 4) + key, lengths) for key in range(5)]
    task = GivenUnits(model, units)
    total = make_engine(model)(task, parameters, task.keys, NoClip(), 0)
    assert relative(total, loop(task, parameters, task.keys, NoClip(), 0)) < 1e-10


def test_the_bound_holds(make_engine: Make) -> None:
    model, parameters = network("gpt2 tied", torch.float32)
    clip = FlatClip(l2_clip_norm=1e-3)
    engine = make_engine(model)
    for seed in range(2):
        task = GivenUnits(model, [u for u in ragged_units(seed) if u.weight == 1.0])
        for key in task.keys:
            total = engine(task, parameters, task.keys[key : key + 1], clip, 0)
            norm = l2_norm(total.values)
            assert norm <= clip.bound


# --- mixtures of experts ------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPERTS)
def test_no_expert_is_ever_full(name: str) -> None:
    """However many tokens of others want the same experts, each token is computed as alone."""
    model, parameters = network(name, torch.float64)
    tokens = torch.arange(12)[None]
    alone, crowd = (model.logits(parameters, tokens.expand(count, -1)) for count in (1, 200))
    torch.testing.assert_close(crowd, alone.expand_as(crowd), rtol=0.0, atol=1e-6)


def test_auto_takes_each_unit_of_a_mixture_of_experts_alone(caplog: Log) -> None:
    model, parameters = network("mixtral", torch.float32)
    task, clip = GivenUnits(model, ragged_units()), FlatClip(l2_clip_norm=0.1)
    with caplog.at_level("INFO"):
        total = choose_engine("auto", task, model, 8)(task, parameters, task.keys, clip, 0)
    alone = loop(task, parameters, task.keys, clip, 0)
    assert relative(total, alone) == 0.0
    (line,) = [record.message for record in caplog.records]
    assert "engine loop" in line
    assert "choice of experts" in line


def test_auto_knows_mixtures_of_experts_by_their_settings(caplog: Log) -> None:
    """A part may have any name, as Doge's `DogeCDMoE`."""
    config = PretrainedConfig()
    module = nn.Sequential(nn.Embedding(VOCABULARY, VOCABULARY))
    module.config = config  # type: ignore[assignment]
    model = cast(OpenModel, Opened(module))
    parameters = {"0.weight": torch.randn(VOCABULARY, VOCABULARY)}
    task = GivenUnits(model, ragged_units())
    with caplog.at_level("INFO"):
        for experts in (1, 4):
            config.num_local_experts = experts
            choose_engine("auto", task, model, 8)(task, parameters, task.keys, NoClip(), 0)
    one, several = [record.message for record in caplog.records]
    assert "choice of experts" not in one
    assert "choice of experts" in several


# --- what is not a number stays with its unit -------------------------------------------------


def test_a_broken_unit_does_not_reach_the_others(make_engine: Make) -> None:
    model, parameters = network("gpt2 untied", torch.float32)
    broken, words = 7, next(iter(parameters))
    parameters[words][broken] = float("nan")
    task = GivenUnits(model, ragged_units())
    for clip in (NoClip(), FlatClip(l2_clip_norm=0.1)):
        total = make_engine(model)(task, parameters, task.keys, clip, 0)
        expected = loop(task, parameters, task.keys, clip, 0)
        assert 0 < expected.num_non_finite < expected.num_units - 1
        same_counts(total, expected)
        assert relative(total, expected) < (1e-5 if clip == NoClip() else CLIP_MARGIN)


def test_updates_too_large_for_float32_are_still_clipped(
    make_engine: Make, monkeypatch: Patch
) -> None:
    model, parameters = network("gpt2 tied", torch.float32)
    parameters["transformer.ln_f.weight"] *= 1e17
    task = GivenUnits(model, ragged_units())
    clip = FlatClip(l2_clip_norm=1.0)
    total = make_engine(model)(task, parameters, task.keys, clip, 0)
    expected = loop(task, parameters, task.keys, clip, 0)
    same_counts(total, expected)
    assert relative(total, expected) < CLIP_MARGIN


# --- mutations: three and more ways to be wrong -------------------------------------------------


def _no_bias(call: Call) -> Mapping[str, Term]:
    return {"weight": Product(call.input, call.gradient)}


def _positions_of_all_units_together(call: Call) -> Mapping[str, Term]:
    gradient = call.gradient
    if call.input.shape[0] == 1:
        gradient = gradient.sum(0, keepdim=True).expand_as(gradient) / len(gradient)
    ids = call.input.expand(gradient.shape[:-1])
    return {"weight": Rows(ids, gradient, call.module.num_embeddings)}


def _norm_of_the_raw_input(call: Call) -> Mapping[str, Term]:
    return {"weight": Total(call.gradient * call.input), "bias": Total(call.gradient)}


def _state_after_instead_of_before(call: Call) -> Mapping[str, Term]:
    return {"weight": Product(call.gradient, cast(torch.Tensor, call.output))}


def _no_cross_term(left: torch.Tensor, *_others: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(left), dtype=torch.float64)


MUTATIONS: dict[str, tuple[str, type[nn.Module] | None, object, str]] = {
    "bias dropped": ("gpt2 tied", Conv1D, _no_bias, "bias"),
    "positions summed over units": (
        *("gpt2 tied", nn.Embedding, _positions_of_all_units_together, "wpe"),
    ),
    "norm not normalised": ("gpt2 tied", nn.LayerNorm, _norm_of_the_raw_input, "ln_"),
    "state not shifted": ("lstm", Recurrence, _state_after_instead_of_before, "hidden_to_gates"),
    "words not scaled": ("gemma", GemmaTextScaledWordEmbedding, rules.embedding, "embed_tokens"),
    "tied cross term dropped": ("gpt2 tied", None, _no_cross_term, "wte"),
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_broken_rule_is_noticed(
    mutation: tuple[str, type[nn.Module] | None, object, str], monkeypatch: Patch, caplog: Log
) -> None:
    name, layer, wrong, place = mutation
    clip = FlatClip(l2_clip_norm=0.1)
    if layer is None:
        make: Make = ghost
        monkeypatch.setattr(
            "fedsim.clients.engines.per_example.ghost.ghost_is_cheaper", ENGINES["ghost, pairs"][1]
        )
        assert max(compare(make, name, torch.float64, clip)) < 1e-10
        monkeypatch.setattr(pairs, "cross_term", wrong)
    else:
        make = materialised
        assert max(compare(make, name, torch.float64, clip)) < exactness(name)
        hook = rules.RULES[layer].hook if layer in rules.RULES else "output"
        monkeypatch.setitem(rules.RULES, layer, Rule(wrong, hook))  # type: ignore[arg-type]
    with monkeypatch.context() as unchecked:
        unchecked.setattr(
            "fedsim.clients.engines.per_example.batched.verify", lambda *_arguments: None
        )
        unchecked.setattr("fedsim.clients.engines.per_example.chunks.CPU_BYTES", 2**60)
        assert min(compare(make, name, torch.float64, clip)) > 1e-5
    assert not caplog.records
    assert compare(make, name, torch.float64, clip) == [0.0]  # the loop's own sum
    (warning,) = caplog.records
    assert place in warning.message
    assert "computing by loop" in warning.message
