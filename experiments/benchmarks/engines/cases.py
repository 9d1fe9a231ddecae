"""Cases for the gradient engines: cohorts in memory, so the times exclude reading data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import numpy as np
import torch

from fedsim.clients.models.mixed_precision import in_precision
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.config import Attention, ModelConfig, Precision
from fedsim.data.config import DataConfig
from fedsim.data.split import Split
from fedsim.data.store import TokenStore
from fedsim.execution import Keys, Task, Unit, Update
from fedsim.experiments.benchmarks.engines.networks import network
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.tensors import Tensors

Kind = Literal["uls", "els", "fedavg", "uls-ragged"]

LOCAL_LEARNING_RATE = 0.1
_SEED = 0


@dataclass(frozen=True)
class Case:
    """A cohort of `num_units` users (examples for els) with `group_size` examples each.

    Attributes:
        kind: uls: mean gradients; fedavg: one local step per example; els: one example per unit;
            uls-ragged: users of the built-in text with at most `group_size` examples.
        model: name for `network`.
        shown: end of the case's name; by default the model, and the group size for uls.
        precision: precision of engine and floor.
        attention: attention kind of the network, see `ModelConfig`.
    """

    kind: Kind
    model: str
    num_units: int
    group_size: int = 1
    sequence_length: int = 64
    device: str = "cpu"
    shown: str = ""
    precision: Precision = "float32"
    attention: Attention = "eager"

    @property
    def name(self) -> str:
        """Name of the case, such as `uls/tiny-gpt/4` or `els/mcmahan-lstm`."""
        if self.shown:
            return self.shown
        parts = [self.kind, self.model]
        return "/".join([*parts, str(self.group_size)] if self.kind == "uls" else parts)


class _InMemory:
    """Task with units in memory, the same in each round."""

    _in_memory: Sequence[Unit]

    def unit(self, key: int, round: int) -> Unit:
        """Return the unit of a key."""
        return self._in_memory[key]

    def units(self, keys: Keys, round: int) -> list[Unit]:
        """Return the units of these keys."""
        return [self._in_memory[key] for key in keys.tolist()]


class InMemoryGradients(_InMemory):
    """The task of mean gradients over units in memory."""

    averages_gradients: ClassVar[bool] = True

    def __init__(self, model: LanguageModel, units: Sequence[Unit]) -> None:
        self._model = model
        self._in_memory = units

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        """Return the mean gradient."""
        return mean_gradient(self._model, parameters, unit)


class InMemoryLocalSGD(_InMemory, LocalSGD):
    """Local training, a step for each example, over units in memory."""

    def __init__(self, model: LanguageModel, units: Sequence[Unit]) -> None:
        # The store is never read: the units are given.
        texts = cast(TokenStore, None), cast(Split, None)
        super().__init__(
            Materials(model, *texts, seed=_SEED),
            group_size=max(len(unit.lengths) for unit in units),
            batch_size=1,
            learning_rate=LOCAL_LEARNING_RATE,
        )
        self._in_memory = [
            replace(unit, streams=torch.arange(len(unit.lengths)) + (unit.key << 32))
            for unit in units
        ]


@dataclass(frozen=True, eq=False)
class Workload:
    """Work of one round.

    Attributes:
        model: the network.
        parameters: parameters of the network, on its device.
        units: units of the clipped sum.
        task: task of the units.
    """

    model: LanguageModel
    parameters: dict[str, torch.Tensor]
    units: list[Unit]
    task: Task

    @property
    def keys(self) -> Keys:
        """All units."""
        return np.arange(len(self.units), dtype=np.int64)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all units, without padding."""
        return sum(int(unit.lengths.sum()) for unit in self.units)


def workload(case: Case) -> Workload:
    """Return the case's work: random tokens with a fixed seed, or users of the built-in text."""
    plain = network(case.model, case.sequence_length, case.device, case.attention)
    model = in_precision(plain, case.precision)
    if case.kind == "uls-ragged":
        return _work(case, model, real_units(case))
    sizes = [case.group_size] * case.num_units
    return _work(case, model, random_units(sizes, case.sequence_length, model.vocabulary_size))


def rectangular(ragged: Workload, case: Case) -> Workload:
    """Return examples of full length, with about the same numbers of tokens and users.

    The last user may have fewer examples than the others.
    """
    examples = max(1, round(ragged.num_tokens / case.sequence_length))
    group = max(1, round(examples / case.num_units))
    sizes = [min(group, examples - start) for start in range(0, examples, group)]
    model = ragged.model
    return _work(case, model, random_units(sizes, case.sequence_length, model.vocabulary_size))


def _work(case: Case, model: LanguageModel, units: list[Unit]) -> Workload:
    parameters = {name: value.to(case.device) for name, value in model.initial_parameters().items()}
    kind = InMemoryLocalSGD if case.kind == "fedavg" else InMemoryGradients
    return Workload(model, parameters, units, kind(model, units))


def random_units(sizes: Sequence[int], length: int, vocabulary: int) -> list[Unit]:
    """Return users with `sizes` examples of `length` tokens each."""
    generator = torch.Generator().manual_seed(_SEED)
    return [
        Unit(
            key,
            torch.randint(0, vocabulary, (size, length), generator=generator),
            torch.full((size,), length),
        )
        for key, size in enumerate(sizes)
    ]


def real_units(case: Case) -> list[Unit]:
    """Return randomly drawn speakers of the built-in text, with their examples of a round."""
    data = DataConfig(sequence_length=case.sequence_length)
    start = ModelConfig(name_or_path=case.model, pretraining_steps=0)
    materials = load_materials(_SEED, data, start, case.device)
    task = AveragedGradient(materials, group_size=case.group_size)
    rng = np.random.default_rng(_SEED)
    drawn = rng.choice(materials.split.num_users, case.num_units, replace=False)
    chosen = [task.unit(int(user), 0) for user in drawn]
    return [Unit(key, unit.tokens, unit.lengths) for key, unit in enumerate(chosen)]
