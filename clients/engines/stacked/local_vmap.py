"""Engine `LocalVmap`: local SGD of many users at once, by layer rules or `torch.func.vmap`.

All users take their first step from the same parameters, so its products with weights are those
of one large batch; from the second on every user has weights of its own, and a product is one
batched product over the stack. The stack is sorted by number of steps, most first: a later step
touches only a prefix of the stack.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch.func import grad_and_value, vmap

from fedsim.clients.engines.clipped_sums import PartialSum
from fedsim.clients.engines.cross_entropy import weighted_loss
from fedsim.clients.engines.loop import VectorisedOrLoop, loop
from fedsim.clients.engines.per_example import chunks
from fedsim.clients.engines.per_example.batched import Buffers
from fedsim.clients.engines.per_example.capture import NotCovered, OpenModel
from fedsim.clients.engines.per_example.chunks import keep_large_blocks
from fedsim.clients.engines.per_example.verification import CannotTell, made_up_unit
from fedsim.clients.engines.stacked.forward import even_parts
from fedsim.clients.engines.stacked.rule_steps import StackedSteps
from fedsim.clients.engines.stacked.step_batches import (
    LocalUser,
    StepBatch,
    add_stack,
    step_batches,
)
from fedsim.clients.models.dropout import drops
from fedsim.clients.models.mixed_precision import in_float32
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.evaluation.losses import token_ids
from fedsim.execution import Keys, Task, Unit
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors

log = logging.getLogger(__name__)

# A user in the stack takes its parameters, their gradients and about as much again in between.
_COPIES = 4
# Rows of logits that a token takes, activations included.
_LOGITS = 6
# Bytes of a stack on a CPU, copies included. With a quarter of the users at once, or twice as many,
# both built-in models took longer on one machine, with half of them on another.
_CPU_STACK_BYTES = 12 * 2**26

# A step of so many tokens is efficient by itself: a user with such steps is computed alone.
_LARGE_STEP = 2048


class LocalVmap:
    """Engine over stacks of users: equals `loop` for `LocalSGD`; other tasks are refused.

    Where torch cannot vectorise a model its `RuntimeError` is passed on; `LocalVmapOrLoop` then
    computes by `loop`.
    """

    def __init__(self, model: LanguageModel, num_bytes: int | None = None) -> None:
        """Take the bytes that the users computed at once may use; by default from the device."""
        self._model = model
        self._num_bytes = num_bytes
        self._limits: chunks.Limits | None = None
        self._buffers = Buffers()
        self._by_rules: StackedSteps | None = None
        self._verified = False
        if model.device.type == "cpu":
            keep_large_blocks()

    def __call__(
        self, task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
    ) -> WeightedSum:
        """Return Σ w·clip(θ − θ_local).

        Raises:
            ValueError: the task is no `LocalSGD`, or the model has dropout.
            RuntimeError, NotImplementedError: torch cannot vectorise the model.
        """
        if not isinstance(task, LocalSGD):
            raise ValueError(f"task {type(task).__name__}: it is no local SGD")
        if drops(self._model):
            raise ValueError(f"{self._model.name}: no dropout here; `choose_engine` takes the loop")
        units = (task.unit(int(key), round) for key in keys)
        users = [LocalUser(unit, list(task.batches(unit, round))) for unit in units]
        total = PartialSum(parameters, clip)
        together = [user for user in users if 0 < user.widest <= _LARGE_STEP]
        alone = [user for user in users if not 0 < user.widest <= _LARGE_STEP]
        if together:
            self._prepare(parameters, together[0].unit)
        together.sort(key=lambda user: user.order)
        while together:
            users = together[: even_parts(len(together), self._within(parameters).units)]
            try:
                alone += self._add(total, users, parameters, task.learning_rate)
            except torch.OutOfMemoryError:
                if len(users) == 1:
                    raise
                self._make_room(len(users))
                continue
            together = together[len(users) :]
        for user in alone:
            update = task.update(parameters, user.unit, round)
            total.alone.add(update, user.unit.weight)
        return total.result()

    def _prepare(self, parameters: Tensors, like: Unit) -> None:
        """Verify, once, that the layer rules can take the steps; else `vmap` takes them.

        On a made-up unit: one user's text must not decide how the others' steps are computed.
        """
        if self._verified:
            return
        if in_float32(self._model) is not self._model:
            return  # bfloat16 rounds by more than tells a wrong step from a right one
        try:
            steps = StackedSteps(cast(OpenModel, self._model))
            steps.verify(parameters, made_up_unit(self._model, like))
        except torch.OutOfMemoryError:
            raise
        except CannotTell:  # not finite at these parameters: by vmap, verified in a later round
            return
        except (NotCovered, RuntimeError) as reason:
            self._verified = True
            log.info("%s: local steps by vmap: no rule for %s", self._model.name, reason)
            return
        self._verified, self._by_rules = True, steps

    def _within(self, parameters: Tensors) -> chunks.Limits:
        """Return how many users and tokens go at once, from the first round's parameters."""
        if self._limits is None:
            device = self._model.device
            size = sum(value.nbytes for value in parameters.values())
            width = max(value.element_size() for value in parameters.values())
            default = chunks.memory_budget(device)
            limits = chunks.limits_within(
                default if self._num_bytes is None else self._num_bytes,
                _COPIES * size,
                _LOGITS * self._model.vocabulary_size * width,
                device,
            )
            if self._num_bytes is None and device.type == "cpu":
                most = max(1, _CPU_STACK_BYTES // (_COPIES * size))
                limits = replace(limits, units=min(limits.units, most))
            self._limits = limits
        return self._limits

    def _make_room(self, num_users: int) -> None:
        assert self._limits is not None  # noqa: S101 (set before the first stack)
        self._limits = replace(self._limits.halved(), units=num_users // 2)
        self._buffers.clear()
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        log.warning(
            "%s: %d users at once do not fit the memory; from now on at most %d",
            self._model.name,
            num_users,
            self._limits.units,
        )

    @torch.no_grad()
    def _add(
        self, total: PartialSum, users: list[LocalUser], parameters: Tensors, learning_rate: float
    ) -> list[LocalUser]:
        """Train `users`, add their updates, and return those that float32 is too coarse for."""
        stack, losses = self.trained(users, parameters, learning_rate)
        for name, value in parameters.items():
            torch.sub(value, stack[name], out=stack[name])
        return add_stack(total, users, stack, losses)

    def users_at_once(self, parameters: Tensors) -> int:
        """Return how many users' parameters fit beside each other."""
        return self._within(parameters).units

    @torch.no_grad()
    def trained(
        self, users: Sequence[LocalUser], parameters: Tensors, learning_rate: float
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return the users' parameters after their local steps, and their losses before them.

        Args:
            users: in the order of `LocalUser.order`, at most `users_at_once`.
            parameters: where they all start.
            learning_rate: of every step.

        Returns:
            (users, *shape) for each parameter, overwritten by the next call, and (users,).
        """
        stack = {k: self._buffers.take(k, len(users), v) for k, v in parameters.items()}
        losses = torch.zeros(len(users), dtype=torch.float64, device=self._model.device)
        seen = torch.zeros(len(users))
        counts = torch.tensor([len(user.unit.lengths) for user in users])
        for step in range(len(users[0].batches)):
            for batch in step_batches(users, step, self._within(parameters).tokens):
                value = self._step(stack, parameters, batch, learning_rate, first=step == 0)
                # Losses count in the first epoch alone: until as many rows were seen as there are.
                rows = (batch.weights > 0).sum(dim=1)
                part = batch.users
                share = torch.where(seen[part] < counts[part], rows / counts[part].double(), 0.0)
                losses[part] += value.double() * share.to(losses.device)
                seen[part] += rows
        return stack, losses

    def _step(
        self,
        stack: dict[str, torch.Tensor],
        parameters: Tensors,
        batch: StepBatch,
        learning_rate: float,
        *,
        first: bool,
    ) -> torch.Tensor:
        """Move the users of `batch` in the stack and return their losses before it: (users,)."""
        local = {name: value[batch.users] for name, value in stack.items()}
        if self._by_rules is not None:
            return self._by_rules(local, parameters, batch, learning_rate, first=first)
        device = self._model.device
        dtype = next(iter(parameters.values())).dtype
        inputs = (
            batch.tokens.to(device),
            batch.lengths.to(device),
            batch.weights.to(device, dtype),
        )
        start = dict(parameters) if first else local
        in_dims = (None if first else 0, 0, 0, 0)
        gradients, losses = vmap(grad_and_value(self._loss), in_dims=in_dims)(start, *inputs)
        for name, value in local.items():
            torch.add(start[name], gradients[name], alpha=-learning_rate, out=value)
        result: torch.Tensor = losses
        return result

    def _loss(
        self,
        parameters: Tensors,
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        logits = self._model.logits(parameters, token_ids(tokens))
        return weighted_loss(logits, tokens, lengths, weights)


class LocalVmapOrLoop(VectorisedOrLoop):
    """`LocalVmap` for `LocalSGD`, until torch raises; other tasks, and from then on, `loop`."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model, LocalVmap(model), halves=True)

    def __call__(
        self, task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
    ) -> WeightedSum:
        """Return what either engine returns."""
        engine = super().__call__ if isinstance(task, LocalSGD) else loop
        return engine(task, parameters, keys, clip, round)
