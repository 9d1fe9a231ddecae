"""Steps over a stack of users' parameters go where each user's own gradient says: every layer."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.clients.engines.per_example.capture import NotCovered
from fedsim.clients.engines.stacked import forward as stacked_forward
from fedsim.clients.engines.stacked.rule_steps import StackedSteps
from fedsim.clients.engines.stacked.step_batches import StepBatch
from fedsim.clients.models.mcmahan_lstm import UnitScores
from fedsim.clients.models.tokenizers import word_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clients.tasks.mean_gradient import mean_gradient
from fedsim.config import ModelConfig
from fedsim.execution import Unit
from fedsim.materials import load_model
from fedsim.tensors import l2_norm
from tests.contracts.layer_samples import NETWORKS, ROUNDS_INSIDE, VOCABULARY

USERS, ROWS, LENGTH = 3, 2, 12
CASES = [*NETWORKS, "mcmahan-lstm", "tiny-gpt"]


def network(name: str) -> TransformersModel:
    torch.manual_seed(0)
    if name in ("mcmahan-lstm", "tiny-gpt"):
        config = ModelConfig(name_or_path=name, pretraining_steps=0)
        model = load_model(config, sequence_length=LENGTH)
        assert isinstance(model, TransformersModel)
    else:
        make, config = NETWORKS[name]
        tokenizer = word_tokenizer(VOCABULARY)
        model = TransformersModel(make(), tokenizer, config, origin="", sequence_length=LENGTH)
    model = copy.deepcopy(model)  # the built-in ones are shared with other tests
    model.module.double()
    return model


def users_apart(model: TransformersModel) -> dict[str, torch.Tensor]:
    """Return a stack in which every user has moved away from the start."""
    start = model.initial_parameters()
    return {
        name: torch.stack([value.double() + 0.05 * torch.randn(value.shape).double()] * USERS)
        + 0.02 * torch.randn(USERS, *value.shape).double()
        for name, value in start.items()
    }


def batch(model: TransformersModel) -> StepBatch:
    tokens = torch.randint(0, min(model.vocabulary_size, 50), (USERS, ROWS, LENGTH))
    tokens[:, 0, 3:6] = ~tokens[:, 0, 3:6]  # context tokens, whose predictions do not count
    lengths = torch.tensor([[LENGTH, 5], [7, LENGTH], [LENGTH, LENGTH]])
    weights = torch.tensor([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    return StepBatch(slice(0, USERS), tokens, lengths, weights)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_everybody_goes_where_their_own_gradient_says(name: str, first: bool) -> None:
    model = network(name)
    local, step = users_apart(model), batch(model)
    start = {name: value[0].clone() for name, value in local.items()}
    before = {
        key: start[key].expand_as(value).clone() if first else value.clone()
        for key, value in local.items()
    }
    tolerance = 1e-6 if name in ROUNDS_INSIDE else 1e-9
    losses = StackedSteps(model)(local, start, step, 0.3, first=first)
    for user in range(USERS):
        real = int((step.weights[user] > 0).sum())
        unit = Unit(user, step.tokens[user, :real], step.lengths[user, :real])
        own = {key: value[user] for key, value in before.items()}
        update = mean_gradient(model, own, unit)
        assert losses[user].item() == pytest.approx(update.loss, rel=tolerance)
        apart = {k: local[k][user] - (own[k] - 0.3 * g) for k, g in update.values.items()}
        assert l2_norm(apart) <= tolerance * l2_norm(update.values)


@pytest.mark.parametrize("wrong", ["no bias", "neighbour", "scaled"])
def test_a_broken_forward_is_found_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    model = network("tiny-gpt")
    right = stacked_forward.FORWARDS

    def broken(
        module: torch.nn.LayerNorm, stack: stacked_forward.Stack, inputs: torch.Tensor
    ) -> torch.Tensor:
        output = stacked_forward.layer_norm(module, stack, inputs)
        if wrong == "no bias":
            return output * 1.02
        if wrong == "neighbour":
            return output.view(stack.users, -1, *output.shape[1:]).roll(1, dims=0).view_as(output)
        return output + 0.05

    monkeypatch.setitem(right, torch.nn.LayerNorm, broken)
    unit = Unit(0, batch(model).tokens[0], batch(model).lengths[0])
    parameters = {k: v.double() for k, v in model.initial_parameters().items()}
    with pytest.raises(NotCovered, match="another gradient than the loop"):
        StackedSteps(model).verify(parameters, unit)


def test_a_layer_without_a_stacked_forward_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(stacked_forward.FORWARDS, UnitScores)
    with pytest.raises(NotCovered, match="UnitScores"):
        StackedSteps(network("mcmahan-lstm"))


@given(st.integers(1, 300), st.integers(1, 300))
def test_parts_are_as_few_as_they_may_be_and_as_even_as_they_can(count: int, most: int) -> None:
    """37 and 27 of 64 would be 32 and 32; a rest of one would take as many calls as a full part."""
    size = stacked_forward.even_parts(count, most)
    parts = [min(size, count - first) for first in range(0, count, size)]
    assert max(parts) <= most
    assert len(parts) == -(-count // most)
    assert size == -(-count // len(parts))
