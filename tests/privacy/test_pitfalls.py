"""Bugs that peers shipped and no other test is about; see `tests/mutation/pitfalls.toml`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import cast

import dp_accounting
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.clients.app import app
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.clipping import FlatClip
from fedsim.config import ModelConfig
from fedsim.execution import Engine, Unit
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.records import ClientSpec
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_model
from fedsim.plan import RoundPlan
from fedsim.round import run_round
from fedsim.runner.summary import privacy_block
from fedsim.sampling import PoissonSampling, TruncatedPoissonSampling
from fedsim.state import ServerState
from fedsim.strategy import build_plan
from tests.conftest import small_config
from tests.contracts.definition import CLIP_MARGIN
from tests.contracts.layer_samples import GivenUnits, network, ragged_units, relative
from tests.privacy.test_released_noise import LAYOUT, ZeroUpdates

SEED = 918_273_645


def a_plan(speeches: Path, materials: Materials, **sections: dict[str, object]) -> RoundPlan:
    return build_plan(small_config(speeches, **sections), materials)


def test_a_round_is_one_release_in_whatever_pieces_it_is_computed(
    speeches: Path, materials: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are accumulated over microbatches, shards and local steps; coins are not."""
    server = {"optimizer": "sgd", "learning_rate": 1.0}
    config = small_config(speeches, server=server, privacy={"noise_multiplier": 0.01})
    plan = build_plan(config, materials)
    spec = ClientSpec(
        seed=config.seed,
        data=config.data,
        model=config.model,
        task=plan.task,
        engine="loop",
        device="cpu",
    )
    start = ServerState(0, materials.model.initial_parameters())
    after = []
    for shard_size, microbatch in ((0, 64), (2, 1)):
        monkeypatch.setattr("fedsim.clients.tasks.gradients._MICROBATCH", microbatch)
        state, executor = start, GridExecutor(InProcessGrid(app), spec, shard_size)
        for _ in range(2):
            state, _ = run_round(state, plan, executor)
        after.append(state)
    whole, pieces = after
    assert whole.ledger == pieces.ledger
    assert [(item.first_round, item.num_rounds) for item in pieces.ledger.items] == [(0, 2)]
    assert {cost for cost, _ in pieces.ledger.costs} == {RoundCost(PoissonSampling(6 / 24), 0.01)}
    for name, value in whole.parameters.items():
        torch.testing.assert_close(pieces.parameters[name], value, rtol=0, atol=1e-5)


class OfItsOwn(TruncatedPoissonSampling):
    """A sampler that nobody here knows, with a law and a price that it states itself."""

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        return dp_accounting.SelfComposedDpEvent(super().event(noise_multiplier, 1), 7)


def test_a_sampler_of_ones_own_is_charged_as_itself() -> None:
    law = OfItsOwn(0.25, 6, 20)
    cost = RoundCost(law, 1.5)
    assert cost.event == law.event(1.5, 1)
    assert cost.event != RoundCost(PoissonSampling(0.25), 1.5).event


def test_the_optimizer_is_given_the_release(speeches: Path, materials: Materials) -> None:
    """Adam's first step is as long whatever it is given; noise that came after it would not be."""
    server = {"optimizer": "adam", "learning_rate": 0.25}
    plan = a_plan(speeches, materials, server=server, privacy={"noise_multiplier": 30.0})
    after, _ = run_round(ServerState(0, LAYOUT), plan, ZeroUpdates(nobody=False))
    moved = torch.cat([(after.parameters[k] - LAYOUT[k]).abs().flatten() for k in LAYOUT])
    # Noise comes on a grid: about one entry in 10^5 gets none, and stays where it is.
    assert (moved == 0.0).sum() < 20
    lengths = moved[moved > 0.0]
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.25), rtol=0.01, atol=0)


def test_epsilon_is_of_the_rounds_that_were_made(speeches: Path, materials: Materials) -> None:
    """Neither of those that were planned, nor of a cohort or a population that never was."""
    config = small_config(speeches, strategy={"rounds": 9}, privacy={"declared_num_users": 48})
    plan = build_plan(config, materials)
    ledger = Ledger()
    for round in range(3):
        ledger = ledger.charge(round, plan.cost, plan.draws.release_id)
    privacy = privacy_block(config, plan, ServerState(3, {}, ledger=ledger), "", 24)
    assert plan.cost == RoundCost(PoissonSampling(6 / 48), 1.0)
    assert privacy.epsilon == epsilon(plan.cost, 3, 1e-3)
    assert privacy.rounds == 3
    assert privacy.sampling_probability == 6 / 48


@pytest.mark.parametrize(
    "said",
    [
        "Hyper-parameters (rounds, rates, sizes, clip, learning rate) count as public: ε does "
        "not cover a choice of them by results on the private data.",
        "Vocabulary and starting point: made of a novel",
        "Each identifier in the user column is one person, and each record belongs to one user.",
        "was counted in the private data and is treated as public",
    ],
)
def test_the_report_says_what_no_epsilon_pays_for(
    speeches: Path, materials: Materials, said: str
) -> None:
    config = small_config(speeches)
    plan = build_plan(config, materials)
    privacy = privacy_block(config, plan, ServerState(0, {}), "made of a novel", 24)
    assert sum(said in line for line in privacy.assumptions) == 1


class BatchNormed(nn.Module):
    """A norm over all positions of all sequences at hand, as long as it is left to train."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.norm(states.mT)).mT


@pytest.fixture
def normed() -> TransformersModel:
    model, _ = network("gpt2 untied", torch.float32)
    whole = cast(PreTrainedModel, copy.deepcopy(model.module))  # other tests have the network too
    whole.get_submodule("transformer").ln_f = BatchNormed(12)
    return TransformersModel(
        whole.train(), model.tokenizer, ModelConfig(), origin="", sequence_length=12
    )


def test_a_batch_norm_keeps_examples_apart(normed: TransformersModel) -> None:
    """A gradient of two examples is the mean of theirs, and statistics of the text do not move."""
    before = {name: value.clone() for name, value in normed.module.named_buffers()}
    parameters = normed.initial_parameters()
    unit = ragged_units()[0]
    both = mean_gradient(normed, parameters, unit).values
    singles = [
        mean_gradient(normed, parameters, Unit(0, unit.tokens[[i]], unit.lengths[[i]])).values
        for i in range(2)
    ]
    for name, value in both.items():
        mean = (singles[0][name] + singles[1][name]) / 2
        torch.testing.assert_close(value, mean, rtol=1e-4, atol=1e-6)
    for name, value in normed.module.named_buffers():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("make", [materialised, ghost, VmapEngine])
def test_a_batch_norm_keeps_units_apart(
    normed: TransformersModel, make: Callable[[LanguageModel], Engine]
) -> None:
    task = GivenUnits(cast(OpenModel, normed), ragged_units())
    parameters, clip = normed.initial_parameters(), FlatClip(l2_clip_norm=0.1)
    total = make(cast(LanguageModel, normed))(task, parameters, task.keys, clip, 0)
    assert relative(total, loop(task, parameters, task.keys, clip, 0)) < CLIP_MARGIN


def test_the_model_that_is_given_away_does_not_hold_the_seed(
    tmp_path: Path, materials: Materials
) -> None:
    config = ModelConfig(pretraining_steps=0, lora_rank=2)
    model = load_model(config, SEED, 24)
    model.save(model.initial_parameters(), tmp_path / "model")
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert len(files) > 2
    assert not [path.name for path in files if str(SEED).encode() in path.read_bytes()]
