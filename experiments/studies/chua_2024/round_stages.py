"""Times of the stages of a private round, and the time that each stage adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from flwr.serverapp import Grid
from torch.nn.utils.rnn import pad_sequence

from fedsim.accounting.accountants import certified
from fedsim.accounting.budget import Budget
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.methods.pld import composed, single_round
from fedsim.clients.engine_choice import choose_engine
from fedsim.config import Config
from fedsim.estimators import WeightedSum
from fedsim.evaluation.losses import example_losses
from fedsim.execution import Engine, Executor, Keys, Task, Unit
from fedsim.experiments.benchmarks.timing import interleaved
from fedsim.grids.build import build_executor
from fedsim.grids.sharding import most_tokens_per_unit
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials
from fedsim.noise.gaussian import release_
from fedsim.plan import RoundPlan
from fedsim.registry import resolve
from fedsim.round import run_round
from fedsim.state import ServerState
from fedsim.strategy import build_plan
from fedsim.tensors import Tensors, add_, zeros_like

BATCH_SIZES = (32, 64, 128)

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Stages(NamedTuple):
    """Median wall-clock seconds of one round's stages; `engine` includes `floor`, and so on.

    Attributes:
        floor: reading texts, then forward and backward over them in large batches.
        engine: clipped sum of the same texts, by the engine itself.
        executor: the same sum through Flower's messages.
        release: the estimate, its norm, and its noise.
        step: step of the server optimizer.
        charge: charge of the ledger.
        budget: the round's share of the budget's check, which is done once per run.
        whole: a complete round, without that check.
    """

    floor: float
    engine: float
    executor: float
    release: float
    step: float
    charge: float
    budget: float
    whole: float


class Parts(NamedTuple):
    """Parts of a round, in seconds; a difference of medians may be negative by chance."""

    forward_backward: float
    clipping: float
    communication: float
    noise: float
    server_step: float
    accounting: float

    @property
    def total(self) -> float:
        """Seconds of the private round."""
        return sum(self)

    @property
    def non_private(self) -> float:
        """Seconds of training without privacy in one process: gradients and a step."""
        return self.forward_backward + self.server_step

    @property
    def ratio(self) -> float:
        """Seconds of the private round over those of training without privacy."""
        return self.total / self.non_private


def parts(stages: Stages) -> Parts:
    """Return the time that each stage adds to the stage inside it."""
    return Parts(
        forward_backward=stages.floor,
        clipping=stages.engine - stages.floor,
        communication=stages.executor - stages.engine,
        noise=stages.release,
        server_step=stages.step,
        accounting=stages.charge + stages.budget,
    )


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run before its first round, with its plan, task, engine and executor."""

    config: Config
    model: LanguageModel
    plan: RoundPlan
    task: Task
    engine: Engine
    executor: Executor
    parameters: Tensors


def prepare(config: Config, materials: Materials, grid: Grid) -> Prepared:
    """Return a prepared run of the config, for timing in this process and through a grid."""
    plan = build_plan(config, materials)
    task: Task = resolve("tasks", plan.task.name, "task")(materials, **plan.task.options)
    size = most_tokens_per_unit(materials, plan.task.options.get("group_size"))
    return Prepared(
        config,
        materials.model,
        plan,
        task,
        choose_engine(config.executor.engine, task, materials.model, size),
        build_executor(config, materials, plan, grid, "cpu"),
        materials.model.initial_parameters(),
    )


def measure(run: Prepared, round: int, repetitions: int) -> tuple[Stages, WeightedSum]:
    """Return the stages of a round, timed in turns after one untimed turn.

    Args:
        run: run at its start; all rounds are measured at the initial parameters.
        round: round number, which determines cohort and noise.
        repetitions: number of repetitions for the medians; the slow budget check runs once.

    Returns:
        The times, and the round's sum with its numbers of units and gradients.
    """
    cohort = run.plan.cohort(round)
    total = run.executor.clipped_sum(run.parameters, cohort, run.plan.clip, round)
    tasks = _tasks(run, round, cohort, total)
    for task in tasks.values():
        task()
    seconds = interleaved(tasks, [*tasks] * repetitions)
    taken = {name: median(of_task) for name, of_task in seconds.items()}
    (checked,) = interleaved({"budget": partial(_check_budget, run)}, ["budget"])["budget"]
    stages = Stages(
        floor=min(taken.pop(_floor_name(size)) for size in BATCH_SIZES),
        budget=checked / run.config.strategy.rounds,
        **taken,
    )
    return stages, total


def plain_gradient(
    model: LanguageModel, parameters: Tensors, units: Sequence[Unit], batch_size: int
) -> dict[str, torch.Tensor]:
    """Return the unclipped Σ w·(mean gradient) over units, as in training without privacy.

    Args:
        model: the network.
        parameters: parameters of the gradients.
        units: units with any number of examples of any length.
        batch_size: sequences per batch; similar lengths are batched together, to save padding.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    total = zeros_like(parameters)
    ones = dict.fromkeys(total, 1.0)
    for tokens, lengths, weights in batches(units, batch_size):
        logits = model.logits(leaves, tokens.to(model.device))
        losses = example_losses(logits, tokens.to(model.device), lengths.to(model.device))
        gradients = torch.autograd.grad(losses @ weights.to(model.device), list(leaves.values()))
        add_(total, dict(zip(leaves, gradients, strict=True)), ones)
    return total


def batches(units: Sequence[Unit], batch_size: int) -> Iterator[Batch]:
    """Yield all units' examples by length: (batch, longest) tokens, lengths and weights."""
    examples = [
        (length, unit.tokens[row, :length], unit.weight / len(unit.lengths))
        for unit in units
        for row, length in enumerate(unit.lengths.tolist())
    ]
    examples.sort(key=lambda example: example[0])
    for start in range(0, len(examples), batch_size):
        lengths, tokens, weights = zip(*examples[start : start + batch_size], strict=True)
        padded = pad_sequence(list(tokens), batch_first=True)
        yield padded, torch.tensor(lengths), torch.tensor(weights)


def _tasks(
    run: Prepared, round: int, cohort: Keys, total: WeightedSum
) -> Mapping[str, Callable[[], Any]]:
    plan, parameters = run.plan, run.parameters
    state = ServerState(round, parameters)
    released = _release(plan, total, round)
    floors: dict[str, Callable[[], Any]] = {
        _floor_name(size): lambda size=size: plain_gradient(  # type: ignore[misc]
            run.model, parameters, run.task.units(cohort, round), size
        )
        for size in BATCH_SIZES
    }
    return {
        **floors,
        "engine": lambda: run.engine(run.task, parameters, cohort, plan.clip, round),
        "executor": lambda: run.executor.clipped_sum(parameters, cohort, plan.clip, round),
        "release": lambda: _release(plan, total, round),
        "step": lambda: plan.optimizer.step(parameters, dict(released), state.optimizer_state),
        "charge": lambda: state.ledger.charge(round, plan.cost, plan.draws.release_id),
        "whole": lambda: run_round(replace(state, ledger=Ledger()), plan, run.executor),
    }


def _floor_name(batch_size: int) -> str:
    return f"floor/{batch_size}"


def _release(plan: RoundPlan, total: WeightedSum, round: int) -> dict[str, torch.Tensor]:
    # Copied, as a release changes the sum in place.
    values = {name: value.clone() for name, value in total.values.items()}
    return release_(
        values, plan.estimator.factor(total), plan.noise_stddev, plan.draws.noise(round)
    )[0]


def _check_budget(run: Prepared) -> None:
    """Count the rounds within the budget, as a run does before its first round.

    Caches are cleared first, as a run starts with a new process.
    """
    certified.cache_clear()
    single_round.cache_clear()
    composed.cache_clear()
    privacy, plan = run.config.privacy, run.plan
    if privacy.epsilon is not None and privacy.delta is not None:
        budget = Budget(privacy.epsilon, privacy.delta, plan.accountant, plan.relation)
        budget.affordable(Ledger(), plan.cost, run.config.strategy.rounds)
