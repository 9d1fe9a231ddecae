"""Networks that no rule describes are computed by the loop, with one warning that says where."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaTextScaledWordEmbedding

from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.batched import BatchedEngine
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.engines.per_example.verification import _check
from fedsim.clipping import FlatClip, NoClip
from fedsim.execution import Unit
from fedsim.tensors import Tensors
from tests.conftest import Log, Patch
from tests.contracts.layer_samples import (
    VOCABULARY,
    GivenUnits,
    Opened,
    ragged_units,
    relative,
    sum_of,
)
from tests.contracts.test_engines import ENGINES

CLIP = FlatClip(l2_clip_norm=0.1)


class Base(nn.Module):
    """An embedding, a hidden layer and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 6)
        self.hidden = nn.Linear(6, 6)
        self.output = nn.Linear(6, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.output(torch.tanh(self.hidden(self.words(tokens)))))


class UsedAgainByHand(Base):
    """The hidden layer's weight is used a second time, past its module."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inner = torch.tanh(self.hidden(self.words(tokens))) @ self.hidden.weight
        return torch.Tensor(self.output(inner))


class ScaledInPlace(Base):
    """What the table of words returns is changed in place, as in CTRL."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = self.words(tokens)
        words *= 2.0
        return torch.Tensor(self.output(torch.tanh(self.hidden(words))))


class OwnParameter(Base):
    """A parameter of a module without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(6))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.output(self.hidden(self.words(tokens)) + self.shift))


class Doubled(nn.Linear):
    """A subclass that computes something else than its class."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(inputs)


class Subclass(Base):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = Doubled(6, 6)


class DoubledScaledWordEmbedding(GemmaTextScaledWordEmbedding):
    """Called as Gemma's words are, but scaled twice."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(super().forward(tokens) * self.embed_scale)


class CalledLikeGemmas(Base):
    def __init__(self) -> None:
        super().__init__()
        self.words = DoubledScaledWordEmbedding(VOCABULARY, 6, 0, 3.0)
        self.words.padding_idx = None


class SomeTokens(Base):
    """The hidden layer sees the even tokens of all sequences in a row."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inner, even = self.words(tokens), tokens % 2 == 0
        return torch.Tensor(self.output(inner.index_put((even,), self.hidden(inner[even]))))


class InputChangedInPlace(Base):
    """What the hidden layer was given is another thing by the time its gradient comes."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        given = self.words(tokens).detach() + 1.0
        inner = self.hidden(given)
        given.mul_(3.0)
        return torch.Tensor(self.output(inner + self.words(tokens)))


class PerSequenceSwitch(Base):
    """The rows are turned round on the way in, so that positions are not where they seem."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inner = torch.tanh(self.hidden(self.words(tokens).flip(0)))
        return torch.Tensor(self.output(inner.flip(0)))


class PositionsFirst(Base):
    """Tokens in a row, but those of all sequences' first positions in front."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = self.words(tokens).transpose(0, 1)
        inner = torch.tanh(self.hidden(words.flatten(0, 1))).view(words.shape)
        return torch.Tensor(self.output(inner.transpose(0, 1)))


class MeanOfTheBatch(Base):
    """What is scored is how a sequence differs from those that happen to be beside it."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inner = torch.tanh(self.hidden(self.words(tokens)))
        return torch.Tensor(self.output(inner - 0.5 * inner.mean(0, keepdim=True)))


class BeginsWithZeros(Base):
    """A branch that is silent at first, in which the hidden layer's weight is used by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(6, 6)
        nn.init.zeros_(self.branch.weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inner = self.words(tokens)
        silent = self.branch(torch.tanh(inner @ self.hidden.weight))
        return torch.Tensor(self.output(torch.tanh(self.hidden(inner)) + silent))


class WindowsOfLongTexts(Base):
    """Rows over 16 tokens are cut, so that the hidden layer sees more rows than there are."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = self.words(tokens)
        cut = words.view(2 * len(words), -1, 6) if tokens.shape[1] == 32 else words
        inner = torch.tanh(self.hidden(cut)).view(words.shape)
        return torch.Tensor(self.output(inner))


def compute(
    make: Callable[[OpenModel], BatchedEngine], network: nn.Module, rounds: int = 1
) -> float:
    torch.manual_seed(0)
    model = cast(OpenModel, Opened(network))
    parameters = model.initial_parameters()
    task = GivenUnits(model, ragged_units())
    engine = make(model)
    for round in range(rounds):
        total = engine(task, parameters, task.keys, CLIP, round)
    return relative(total, loop(task, parameters, task.keys, CLIP, 0))


@pytest.mark.parametrize("make", [materialised, ghost])
@pytest.mark.parametrize("kind", [Base, ScaledInPlace])
def test_a_plain_network_is_covered(
    make: Callable[[OpenModel], BatchedEngine], kind: type[Base], caplog: Log
) -> None:
    assert 0.0 < compute(make, kind()) < 5e-5  # the loop's clip has no margin
    assert not caplog.records


@pytest.mark.parametrize("make", [materialised, ghost])
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (UsedAgainByHand, "hidden.weight"),
        (OwnParameter, "OwnParameter"),
        (Subclass, "hidden (Doubled)"),
        (CalledLikeGemmas, "words.weight"),
        (PerSequenceSwitch, "hidden"),
        (PositionsFirst, "hidden"),
        (SomeTokens, "hidden: its output has no row"),
        (MeanOfTheBatch, "words"),
        (BeginsWithZeros, "hidden.weight"),
    ],
)
def test_what_no_rule_describes_is_left_to_the_loop(
    make: Callable[[OpenModel], BatchedEngine], kind: type[Base], place: str, caplog: Log
) -> None:
    assert compute(make, kind(), rounds=3) == 0.0
    (warning,) = caplog.records  # one, however many rounds
    assert place in warning.message
    assert "computing by loop" in warning.message


@pytest.mark.parametrize("make", [materialised, ghost])
def test_inputs_that_are_changed_in_place_are_never_used(
    make: Callable[[OpenModel], BatchedEngine], caplog: Log
) -> None:
    # Automatic differentiation refuses such a network as well, so the loop says so in the end.
    with pytest.raises(RuntimeError, match="inplace operation"):
        compute(make, InputChangedInPlace())
    (warning,) = caplog.records
    assert "hidden: its input was changed in place" in warning.message


@pytest.mark.parametrize("make", [materialised, ghost])
def test_no_users_text_decides_whether_the_rules_hold(
    make: Callable[[OpenModel], BatchedEngine], monkeypatch: Patch
) -> None:
    """The rules are verified on made-up units: the engine's margins must not move with a user."""
    tried: list[list[torch.Tensor]] = []

    def noted(*arguments: Any) -> None:  # noqa: ANN401
        tried[-1].extend(unit.tokens for unit in arguments[3])
        _check(*arguments)

    monkeypatch.setattr("fedsim.clients.engines.per_example.verification._check", noted)
    network = Base()
    cohort = [unit for unit in ragged_units() if len(unit.lengths)]
    for first in (cohort[0], cohort[-1]):
        model = cast(OpenModel, Opened(copy.deepcopy(network)))  # tried once a network
        tried.append([])
        sum_of(model, model.initial_parameters(), CLIP, make(model), [first])
        assert not any(torch.equal(tokens, first.tokens) for tokens in tried[-1])
    one, other = tried
    assert len(one) == 4  # two units, at the parameters and near them
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("make", [materialised, ghost])
@pytest.mark.parametrize("known", [True, False])
def test_no_long_text_decides_how_the_others_are_computed(
    make: Callable[[OpenModel], BatchedEngine], known: bool, caplog: Log
) -> None:
    """A row of the longest text is tried before; where its length is not known the round fails."""
    model = cast(OpenModel, Opened(WindowsOfLongTexts()))
    if known:
        model.sequence_length = 32  # type: ignore[attr-defined]
    parameters = model.initial_parameters()
    tokens = torch.arange(32)[None] % VOCABULARY
    short, long = (Unit(0, tokens[:, :size], torch.tensor([size])) for size in (9, 32))
    engine = make(model)
    sum_of(model, parameters, CLIP, engine, [short])
    assert bool(caplog.records) == known
    task = GivenUnits(model, [short, long])
    if known:
        engine(task, parameters, task.keys, CLIP, 1)
    else:
        with pytest.raises(RuntimeError, match=r"no layer rule describes.*executor.engine = .loop"):
            engine(task, parameters, task.keys, CLIP, 1)


@pytest.mark.parametrize("make", [materialised, ghost])
def test_a_network_that_shows_no_modules_is_left_to_the_loop(
    make: Callable[[OpenModel], BatchedEngine], caplog: Log
) -> None:
    class Closed:
        name, device, vocabulary_size = "closed", torch.device("cpu"), VOCABULARY

        def logits(self, parameters: Tensors, tokens: torch.Tensor) -> torch.Tensor:
            return parameters["words"][tokens]

    model = cast(OpenModel, Closed())
    parameters = {"words": torch.randn(VOCABULARY, VOCABULARY)}
    sum_of(model, parameters, CLIP, make(model), ragged_units())
    (warning,) = caplog.records
    assert "a network that does not show its modules" in warning.message


@pytest.mark.parametrize("name", ["loop", "vmap"])
def test_a_part_that_a_text_leaves_out_has_a_gradient_of_zero(name: str) -> None:
    """As experts that none of its tokens chose: else that one text would end the round."""

    class Chosen(Base):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            inner = self.words(tokens)
            return torch.Tensor(self.output(self.hidden(inner) if tokens.shape[1] > 12 else inner))

    model = cast(OpenModel, Opened(Chosen()))
    parameters = model.initial_parameters()
    tokens = torch.arange(20)[None] % VOCABULARY
    task = GivenUnits(model, [Unit(0, tokens[:, :n], torch.tensor([n])) for n in (6, 20)])
    engine = ENGINES[name](model)
    alone = {"hidden.weight": parameters["hidden.weight"]}
    if name == "loop":  # none of what is trained is used, and there is no graph
        sole = cast(OpenModel, Opened(model.module, list(alone)))
        task_of_it = GivenUnits(sole, task.given)
        nothing = engine(task_of_it, alone, task.keys[:1], NoClip(), 0)
        assert not nothing.values["hidden.weight"].any()
    sums = [engine(task, parameters, keys, NoClip(), 0) for keys in (np.array([0]), task.keys)]
    assert not sums[0].values["hidden.weight"].any()
    assert sums[1].values["hidden.weight"].any()
    assert relative(sums[1], loop(task, parameters, task.keys, NoClip(), 0)) < 1e-5
