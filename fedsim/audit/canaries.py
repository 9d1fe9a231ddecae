"""Canary users in a real run: planted updates, and their scores from the releases.

A canary is an update that moves one coordinate of the parameters as far as the clip allows. If
layers are clipped separately, it moves one coordinate per layer. The run's own coins draw its
units, which are added to the real users' sum. `execution.Accumulator` clips them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt
import torch

from fedsim.audit.likelihood import log_ratio_of_rounds
from fedsim.clipping import Clip, NormalisedClip, PerLayerClip, layer_of
from fedsim.estimators import WeightedSum
from fedsim.execution import Accumulator, Executor, Keys, Update
from fedsim.plan import RoundPlan
from fedsim.release import Release
from fedsim.seeding import stream
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from fedsim.tensors import Tensors, l2_norm, scale

_LARGE = 1e3  # norm of a planted update divided by the clip's bound, so that it is clipped

Coordinate = tuple[str, int]
Canary = tuple[Coordinate, ...]
"""The coordinates that a canary moves: a parameter's name and a flat index each."""


def draw_canaries(layout: Tensors, clip: Clip, count: int, seed: int) -> list[Canary]:
    """Return `count` canaries on random coordinates, distinct if there are enough coordinates."""
    rng = stream(seed, "audit", 0)
    inner = clip.clip if isinstance(clip, NormalisedClip) else clip
    groups = [list(layout)]
    if isinstance(inner, PerLayerClip):
        layers = inner.l2_clip_norms
        groups = [[name for name in layout if layer_of(name) == layer] for layer in layers]
    columns = [_coordinates(layout, names, count, rng) for names in groups]
    return list(zip(*columns, strict=True))


def _coordinates(
    layout: Tensors, names: Sequence[str], count: int, rng: np.random.Generator
) -> list[Coordinate]:
    ends = np.cumsum([layout[name].numel() for name in names])
    drawn = rng.choice(int(ends[-1]), size=count, replace=count > ends[-1])
    owner = np.searchsorted(ends, drawn, side="right")
    starts = np.concatenate([[0], ends[:-1]])
    return [
        (names[which], int(entry - starts[which]))
        for which, entry in zip(owner.tolist(), drawn.tolist(), strict=True)
    ]


def flip_coins(count: int, seed: int) -> npt.NDArray[np.bool_]:
    """Return (count,) bool: independent fair coins that decide which canaries take part."""
    return np.asarray(stream(seed, "audit", 1).random(count) < 0.5)


class CanaryExecutor:
    """Adds the drawn canaries to an executor's sum over real units.

    Args:
        inner: computes the sum over real units, with keys below `first_key`.
        canaries: coordinates of each canary.
        plan: plan of the rounds, with the clip; all `units_per_user` units of a canary move its
            coordinates.
        first_key: key of the first canary unit; the units are numbered canary by canary.
    """

    def __init__(
        self, inner: Executor, canaries: Sequence[Canary], plan: RoundPlan, first_key: int
    ) -> None:
        self._inner = inner
        self._canaries = canaries
        self._sizes = [float(value) for value in planted_unit(plan.clip).values()]
        self._per_canary = plan.units_per_user
        self._first_key = first_key

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        """Return the sum over real units and canaries together."""
        planted = cohort[cohort >= self._first_key]
        total = self._inner.clipped_sum(parameters, cohort[cohort < self._first_key], clip, round)
        for number in ((planted - self._first_key) // self._per_canary).tolist():
            for (name, index), size in zip(self._canaries[number], self._sizes, strict=True):
                total.values[name].view(-1)[index] += size
        return replace(
            total, weight=total.weight + len(planted), num_units=total.num_units + len(planted)
        )


class Watch:
    """Records the component of each release in the direction of each canary."""

    def __init__(self, canaries: Sequence[Canary], plan: RoundPlan) -> None:
        self._plan = plan
        self._entries: dict[str, list[tuple[int, int, float]]] = {}
        self._count = len(canaries)
        alone = WeightedSum(planted_unit(plan.clip), weight=1.0, num_units=1)
        one = scale(alone.values, plan.estimator.factor(alone))
        factors = [float(value) / l2_norm(one) ** 2 for value in one.values()]
        for number, canary in enumerate(canaries):
            for (name, index), factor in zip(canary, factors, strict=True):
                self._entries.setdefault(name, []).append((number, index, factor))
        self._moved: list[npt.NDArray[np.float64]] = []

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        """(num_canaries,): the log-likelihood ratios of the rounds so far.

        The ratio ignores real users' updates, which act as additional noise. They make scores
        weaker, but the bound stays valid.
        """
        return log_ratio_of_rounds(self._moved, self._plan.cost, self._plan.matrix)

    def __call__(self, release: Tensors) -> None:
        """Take one round's release into account."""
        moved = np.zeros(self._count)
        for name, entries in self._entries.items():
            numbers, indices, factors = (list(column) for column in zip(*entries, strict=True))
            seen = release[name].flatten()[torch.tensor(indices)].double().cpu().numpy()
            np.add.at(moved, numbers, seen * np.array(factors))
        self._moved.append(moved)


@dataclass(frozen=True)
class WatchedOptimizer(ServerOptimizer):
    """Passes each release to `watch`, then to the optimizer `inner`."""

    inner: ServerOptimizer = field(kw_only=True)
    watch: Callable[[Tensors], None] = field(kw_only=True)

    def advance(
        self, state: ServerState, release: Release, noise_stddev: float, *, keep: bool
    ) -> ServerState:
        """Pass the release to `watch`, then step."""
        self.watch(release.values)
        return self.inner.advance(state, release, noise_stddev, keep=keep)


def with_canaries(
    plan: RoundPlan, canaries: Sequence[Canary], included: npt.NDArray[np.bool_]
) -> tuple[RoundPlan, int, Watch]:
    """Return the plan over real and included canary units, the canaries' first key, the watch.

    Coins, denominator, noise and cost do not change, because users are drawn independently. With
    cyclic sampling all units of a canary are in one group.
    """
    first_key = int(plan.pool.max()) + 1
    keys = first_key + np.arange(len(canaries) * plan.units_per_user, dtype=np.int64)
    planted = keys[np.repeat(included, plan.units_per_user)]
    watch = Watch(canaries, plan)
    inner = plan.optimizer
    shown = {item.name: getattr(inner, item.name) for item in fields(ServerOptimizer)}
    optimizer = WatchedOptimizer(**shown, inner=inner, watch=watch)
    addresses = plan.pool if plan.addresses is None else plan.addresses
    both = (addresses.astype(np.uint64), planted.astype(np.uint64))  # mixed types become floats
    owners = plan.owners
    if owners is not None:
        numbers = owners.max() + np.arange(1, included.sum() + 1, dtype=owners.dtype)
        owners = np.concatenate([owners, np.repeat(numbers, plan.units_per_user)])
    plan = replace(
        plan,
        owners=owners,
        pool=np.concatenate([plan.pool, planted]),
        addresses=np.concatenate(both),
        optimizer=optimizer,
    )
    return plan, first_key, watch


def planted_unit(clip: Clip) -> dict[str, torch.Tensor]:
    """Return the clipped contribution of a unit that moves one coordinate per clipped layer."""
    planted = {
        name: torch.tensor([_LARGE * bound], dtype=torch.float64)
        for name, bound in layer_bounds(clip).items()
    }
    accumulator = Accumulator(planted, clip)
    accumulator.add(Update(planted, loss=0.0, num_gradients=1), weight=1.0)
    return dict(accumulator.total().values)


def layer_bounds(clip: Clip) -> dict[str, float]:
    """Return a parameter's name and the bound for each separately clipped layer."""
    inner = clip.clip if isinstance(clip, NormalisedClip) else clip
    if isinstance(inner, PerLayerClip):
        return {f"{layer}.weight": bound for layer, bound in inner.l2_clip_norms.items()}
    return {"weight": inner.bound}
