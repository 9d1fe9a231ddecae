"""Engine `stacked`: a group of users takes local steps together, on a stack of parameters.

A pass has one shape: the places of a group, the examples of a local step, and the length to which
the users' own rows are padded. Empty rows fill the rest. So no user decides what is computed for
another; local steps can amplify a difference in the last bit without limit. In the first step all
users have the server's parameters, so its products are those of one large batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from fedsim.clients.engines.clipped_sums import (
    PartialSum,
    add_rows,
    block_squares,
    clip_factors,
    shares,
)
from fedsim.clients.engines.cross_entropy import Batch
from fedsim.clients.engines.pass_shape import pass_shape
from fedsim.clients.engines.per_example import chunks
from fedsim.clients.engines.per_example.capture import NotCovered, OpenModel, find_layers
from fedsim.clients.engines.stacked.forward import Stack
from fedsim.clients.engines.stacked.steps import StackedGradients, rows_of, verify
from fedsim.clients.models.dropout import at_step
from fedsim.clients.models.gpu_kernels import sent
from fedsim.clients.models.mixed_precision import in_float32
from fedsim.clients.tasks.fedavg import LocalSGD, LocalSteps
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys, Task, Unit
from fedsim.tensors import Tensors, zeros_like
from fedsim.utils.machine import keep_freed_memory

# Users of a group, and bytes of its stack on a CPU, whose cache should hold part of the stack. The
# size of a group must not depend on the number of users, so larger groups have more empty places.
CPU_USERS, GPU_USERS = 16, 64
CPU_STACK = 72 * 2**20


class _User:
    """A user who takes local steps.

    Attributes:
        unit: the user's examples.
        batches: the rows of each step.
    """

    def __init__(self, unit: Unit, batches: Sequence[torch.Tensor]) -> None:
        self.unit = unit
        self.batches = batches

    def share(self, step: int) -> float:
        """Return the weight of a step's loss in the unit's loss: zero after the first pass."""
        count = len(self.unit.lengths)
        seen = sum(len(rows) for rows in self.batches[:step])
        return len(self.batches[step]) / count if seen < count else 0.0


class StackedEngine:
    """Engine over stacks of users: equals `loop` for `LocalSGD`; other tasks are refused.

    Args:
        model: the network.
        num_bytes: memory for the users of a stack.

    Attributes:
        most_users: maximum number of users of a group.

    Raises:
        NotCovered: a layer has no rule, or its rule differs from `loop`.
    """

    def __init__(self, model: OpenModel, num_bytes: int) -> None:
        self._model = model
        self._shape = pass_shape(model)
        self._layers = find_layers(model)
        parameters = {k: v.to(model.device) for k, v in model.initial_parameters().items()}
        length = getattr(model, "sequence_length", 8)
        try:
            # bfloat16 rounds by more than a wrong rule may differ.
            verify(in_float32(model), self._layers, parameters)
            _, bytes_per_token = chunks.pass_bytes(model, parameters, length)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise NotCovered(f"some layer ({str(error).splitlines()[0]})") from error
        size = sum(value.nbytes for value in parameters.values())
        # Parameters, velocities, updates, and temporary values.
        limits = chunks.limits_within(num_bytes, 4 * size, bytes_per_token, model.device)
        on_cpu = model.device.type == "cpu"
        most = min(CPU_USERS, CPU_STACK // size) if on_cpu else GPU_USERS
        users = max(1, min(limits.units, most))
        # A power of two: most cohorts then fill whole groups.
        self.most_users, self._most_tokens = 1 << users.bit_length() - 1, limits.tokens
        if on_cpu:
            keep_freed_memory()

    def __call__(
        self, task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
    ) -> WeightedSum:
        """Return Σ w·clip(θ − θ_local).

        Raises:
            ValueError: the task is not `LocalSGD`.
        """
        if not isinstance(task, LocalSGD):
            raise ValueError(f"task {type(task).__name__}: it is not LocalSGD")
        total = PartialSum(parameters, clip)
        users = [_User(u, list(task.batches(u, round))) for u in task.units(keys, round)]
        empty = [user.unit for user in users if not user.batches]
        total.count(empty, torch.zeros(len(empty)), num_unclipped=len(empty))

        def order(user: _User) -> tuple[int, int, int]:
            return self._length(user), -len(user.batches), user.unit.key

        waiting = sorted((user for user in users if user.batches), key=order)
        for length, alike in groupby(waiting, key=self._length):
            most = max(1, self._most_tokens // (task.batch_size * length))
            shape = Stack(min(self.most_users, most), task.batch_size)
            gradients = StackedGradients(self._model, self._layers, shape)
            group = _Group(gradients, task.steps, total, shape, length)
            of_length = list(alike)
            for start in range(0, len(of_length), shape.users):
                group.add(of_length[start : start + shape.users])
        return total.total()

    def _length(self, user: _User) -> int:
        return self._shape.padded(user.unit.tokens.shape[1])


class _Group:
    """The parameters of a group of users; all groups of one length use this memory in turn."""

    def __init__(
        self,
        gradients: StackedGradients,
        how: LocalSteps,
        total: PartialSum,
        shape: Stack,
        length: int,
    ) -> None:
        self._gradients, self._how, self._total = gradients, how, total
        self._shape, self._length, self._start = shape, length, total.parameters
        like = next(iter(self._start.values()))
        self._device, self._dtype = like.device, like.dtype
        self._stack = {k: v.new_empty(shape.users, *v.shape) for k, v in self._start.items()}
        plain = not (how.momentum or how.proximal)
        self._velocity = {} if plain else zeros_like(self._stack)
        self._empty(slice(None))

    @torch.no_grad()
    def add(self, users: Sequence[_User]) -> None:
        """Train users, those with most steps first, and add w·clip(θ − θ_local)."""
        losses, active = [0.0] * len(users), len(users)
        for step in range(len(users[0].batches)):
            step_losses = self._step(users[:active], step)
            for place, user in enumerate(users[:active]):
                losses[place] += user.share(step) * step_losses[place]
            last = sum(len(user.batches) > step + 1 for user in users)
            if last < active:
                done = slice(last, active)
                self._leave(users[done], done, losses[done])
                self._empty(done)
                active = last

    def _empty(self, places: slice) -> None:
        """Reset places to the server's parameters, so that empty rows give finite numbers."""
        for name, value in self._stack.items():
            value[places] = self._start[name]
        for value in self._velocity.values():
            value[places] = 0.0

    def _step(self, users: Sequence[_User], step: int) -> list[float]:
        """Take a step, see `LocalSteps`, and return the places' losses before it."""
        rates = torch.full((self._shape.users,), self._how.learning_rate, dtype=torch.float64)
        for place, user in enumerate(users):
            rates[place] = self._how.rate(step, len(user.batches))
        # Without momentum the gradient is scaled, so that it is the step.
        scale = torch.ones_like(rates) if self._velocity else -rates
        for name, value in self._velocity.items():
            value.mul_(self._how.momentum)
            value.add_(self._stack[name] - self._start[name], alpha=self._how.proximal)
        losses = self._gradients.add(
            self._velocity or self._stack,
            self._stack if step else self._start,
            self._batch(users, step, scale),
            shared=step == 0,
        )
        by_user = sent(-rates.to(self._dtype), self._device)[:, None]
        for name, value in self._velocity.items():
            self._stack[name].flatten(1).addcmul_(value.flatten(1), by_user)
        return [float(loss) for loss in losses.cpu() / scale]

    def _batch(self, users: Sequence[_User], step: int, scale: torch.Tensor) -> Batch:
        """Return the rows of a step; rows of empty places have no weight in the loss."""
        shape = (*self._shape, self._length)
        tokens, shares = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape).double()
        streams = torch.zeros(self._shape, dtype=torch.int64)
        for place, user in enumerate(users):
            unit, rows = user.unit, user.batches[step]
            own = slice(len(rows)), slice(unit.tokens.shape[1])
            tokens[place][own], shares[place][own] = rows_of(unit.tokens[rows], unit.lengths[rows])
            if (at := at_step(unit.streams, step)) is not None:
                streams[place, : len(rows)] = at[rows]
        scaled = (shares * scale[:, None, None]).to(self._dtype)
        return Batch(
            sent(tokens.flatten(0, 1), self._device),
            sent(scaled.flatten(0, 1), self._device),
            streams=sent(streams.flatten(), self._device),
        )

    def _leave(self, users: Sequence[_User], places: slice, losses: Sequence[float]) -> None:
        """Add w·clip(θ − θ_local) of the users in these places, and overwrite the places."""
        total, units = self._total, [user.unit for user in users]
        moved = {name: value[places] for name, value in self._stack.items()}
        for name, value in moved.items():
            torch.sub(self._start[name], value, out=value)
        squares = torch.stack([block_squares(value.flatten(1)) for value in moved.values()], dim=1)
        factors, plain = clip_factors(total.clip, self._start, squares)
        unclipped = plain & (factors == total.clip.unclipped_factor).all(dim=1)
        if left_out := int((~plain).sum()):
            for value in moved.values():
                value[~plain] = 0.0  # a factor of 0 times NaN would be NaN
        total.count(
            units,
            torch.tensor(losses, dtype=torch.float64),
            num_gradients=sum(len(rows) for user in users for rows in user.batches),
            num_unclipped=int(unclipped.sum()),
            num_non_finite=left_out,
        )
        parts = shares(factors, units, plain).T.to(self._dtype).contiguous()
        sums = total.narrow(len(users))
        for part, (name, value) in zip(parts, moved.items(), strict=True):
            add_rows(sums[name], part, value)
