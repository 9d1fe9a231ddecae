"""The server's step: torch's optimizers as functions without hidden state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from fedsim.config.schema import ServerConfig
from fedsim.release import Release, Trained
from fedsim.server.automatic_rate import AutomaticRate
from fedsim.server.debiased_adam import DebiasedAdam
from fedsim.server.over_rounds import Average, RateSchedule
from fedsim.server.torch_optimizers import KINDS, keys_of, torch_optimizer, torch_options
from fedsim.state import ServerState
from fedsim.tensors import Tensors, as_float32_, check_same_layout, threads_by_size


@dataclass(frozen=True)
class ServerOptimizer:
    """A torch optimizer, by name (Charles et al. 2024, App. F).

    The released estimate is the gradient. For local SGD it is the mean of θ_server − θ_local,
    so that SGD with learning rate 1 is McMahan et al.'s averaging. A gradient longer than
    `max_gradient_norm` is scaled down to that norm. This is batch clipping (Pascanu et al. 2013):
    it does not bound the share of one user and gives no guarantee.

    To add an optimizer, register a subclass that overrides `torch_optimizer` under the entry-point
    group `fedsim.server_optimizers` (`docs/how-to/own-parts.md`). Its state may hold only tensors.
    It reads only paid releases, so ε does not depend on it. Schedule and average work with it too.

    Attributes:
        name: name of the optimizer; for torch's, its class in lower case.
        learning_rate: learning rate of every round, before `schedule`.
        max_gradient_norm: maximum L2 norm of the gradient; None for no limit.
        keys: other arguments of torch's optimizer.
        schedule: multiplies the learning rate; None for a constant rate.
        average: averages the parameters over rounds; evaluation and saving then use the average.
        debias: subtract the noise from the second moment of "adam" or "adamw" (`DebiasedAdam`).

    Raises:
        ValueError: `debias` with an optimizer that has no second moment.
    """

    name: str
    learning_rate: float
    max_gradient_norm: float | None = None
    keys: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    schedule: RateSchedule | None = field(default=None, kw_only=True)
    average: Average | None = field(default=None, kw_only=True)
    debias: bool = field(default=False, kw_only=True)
    options: ClassVar[type[ServerConfig]] = ServerConfig

    def __post_init__(self) -> None:
        if self.debias and self.name not in ("adam", "adamw"):
            raise ValueError('debias = True: works with "adam" and "adamw" only')

    @classmethod
    def build(cls, options: ServerConfig) -> ServerOptimizer:
        """Return the optimizer of a config; `options` is the table `[server]`."""
        rate, norm = options.learning_rate, options.max_gradient_norm
        if rate is None:
            raise ValueError("learning_rate: missing")
        return cls(options.optimizer, rate, norm, keys=keys_of(options), debias=options.debias)

    def torch_optimizer(self, values: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Return a new optimizer of `values`, with empty state."""
        return torch_optimizer(self.name, values, self.learning_rate, self.keys, debias=self.debias)

    @property
    def stepping(self) -> ServerOptimizer:
        """The optimizer that provides `torch_optimizer`; it has no plan, so it can be sent."""
        return self

    def advance(
        self, state: ServerState, release: Release, noise_stddev: float, *, keep: bool
    ) -> ServerState:
        """Return the state with the next parameters, optimizer state and average.

        Args:
            state: state before the step.
            release: the gradient; used up.
            noise_stddev: standard deviation of the noise in each entry of the gradient.
            keep: see `step`.
        """
        step, remembered = self._step_of(state.round, release, state.optimizer_state, noise_stddev)
        before = Trained(state.parameters, state.optimizer_state, state.average)
        parameters, moments, average = release.stepped(step, before, keep=keep)
        stored = {**remembered, **moments} if remembered else moments
        return replace(state, parameters=parameters, optimizer_state=stored, average=average)

    def step(
        self,
        parameters: Tensors,
        gradient: dict[str, torch.Tensor],
        state: Tensors,
        *,
        round: int = 0,
        noise_stddev: float = 0.0,
        keep: bool = True,
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the next parameters and optimizer state; `parameters` is unchanged.

        Args:
            parameters: float32 tensors.
            gradient: same layout, any float dtype. The dict is empty afterwards: each tensor is
                freed before the next one needs memory.
            state: flat, "parameter/key" → tensor; empty before the first step.
            round: round of the learning rate, from 0.
            noise_stddev: standard deviation of the noise in each gradient entry; for `debias`.
            keep: whether to leave the state and the gradient's tensors unchanged. If false, both
                are overwritten and the `state` dict is emptied. With Adam this saves two copies of
                the parameters.

        Examples:
            >>> start = {"w": torch.tensor([1.0])}
            >>> after, _ = ServerOptimizer("sgd", 0.5).step(start, {"w": torch.tensor([0.2])}, {})
            >>> round(after["w"].item(), 6), start["w"].item()
            (0.9, 1.0)
        """
        check_same_layout(parameters, gradient)
        step, remembered = self._step_of(round, Release(gradient), state, noise_stddev)
        after = replace(step, average=None)(Trained(parameters, state, {}), gradient, keep)
        return dict(after.parameters), {**remembered, **after.optimizer_state}

    def _step_of(
        self, round: int, release: Release, state: Tensors, noise_stddev: float
    ) -> tuple[OptimizerStep, Tensors]:
        """Return a round's step, and the state to store beside the optimizer's."""
        longest = math.inf if self.max_gradient_norm is None else self.max_gradient_norm
        norm = 0.0 if math.isinf(longest) else release.norm
        factor = 1.0 if norm <= longest else longest / norm
        share, remembered = self.rate_share(round, release, state, noise_stddev)
        step = OptimizerStep(
            self.stepping, self.average, round, factor, share, factor * noise_stddev
        )
        return step, remembered

    def rate_share(
        self, round: int, release: Release, state: Tensors, noise_stddev: float
    ) -> tuple[float, Tensors]:
        """Return the factor on the learning rate of `round`, and entries for the next `state`.

        The arguments are those of `advance`.
        """
        return 1.0 if self.schedule is None else self.schedule.share(round), {}

    def reported(self, state: ServerState, noise_stddev: float) -> dict[str, str]:
        """Return settings for the report that the config does not show, for the last state."""
        return {}

    @property
    def copies(self) -> int:
        """Size of the optimizer's state and the average, in float32 copies of the parameters."""
        value = torch.zeros(2, 3)
        value.grad = torch.zeros(2, 3)
        optimizer = self.torch_optimizer([value])
        optimizer.step()
        state = optimizer.state[value].values()
        moments = [entry for entry in state if entry.shape == value.shape]
        return len(moments) + (self.average is not None)


@dataclass(frozen=True)
class OptimizerStep:
    """One round's step, on all parameters or on a share of them.

    Attributes:
        optimizer: provides `torch_optimizer`.
        average: averages the parameters; None for no average.
        round: the round, from 0.
        factor: factor on the gradient.
        rate_share: factor on the learning rate.
        noise_stddev: standard deviation of the noise in each gradient entry, after `factor`.
    """

    optimizer: ServerOptimizer
    average: Average | None
    round: int
    factor: float
    rate_share: float
    noise_stddev: float

    def __call__(self, trained: Trained, gradient: dict[str, torch.Tensor], keep: bool) -> Trained:
        """Return the state after the step; for the arguments see `ServerOptimizer.step`."""
        parameters, state, average = trained
        before: dict[str, dict[str, torch.Tensor]] = {name: {} for name in parameters}
        for path, value in state.items():
            name, _, key = path.rpartition("/")
            if name in before:  # else it is `rate_share`'s
                before[name][key] = value
        if not keep and isinstance(state, dict):
            state.clear()
        moved: dict[str, torch.Tensor] = {}
        after: dict[str, torch.Tensor] = {}
        with threads_by_size(parameters):
            for name, value in parameters.items():
                moved[name] = entry = value.detach().clone()
                scaled = gradient.pop(name)
                scaled = scaled if self.factor == 1.0 else scaled * self.factor
                entry.grad = scaled.to(entry.dtype) if keep else as_float32_(scaled)
                del scaled
                optimizer = self.optimizer.torch_optimizer([entry])
                for group in optimizer.param_groups:
                    group["lr"] *= self.rate_share
                if isinstance(optimizer, DebiasedAdam):
                    optimizer.noise_variance = self.noise_stddev**2
                if before[name]:
                    # What `load_state_dict` does, without its second copy.
                    optimizer.state[entry] = {
                        key: old.to(entry.device, copy=keep) for key, old in before[name].items()
                    }
                optimizer.step()
                entry.grad = None
                after |= {f"{name}/{key}": new for key, new in optimizer.state[entry].items()}
        if self.average is not None:
            average = self.average.after(self.round, average, moved)
        return Trained(moved, after, average)


NON_PRIVATE_RATE = 0.002
"""Adam's learning rate for a run without noise."""
_SIGNALS = "rate/signals"


@dataclass(frozen=True)
class AutomaticOptimizer(ServerOptimizer):
    """SGD at an automatic learning rate, or Adam for runs without noise.

    The rate falls linearly to 0. Adam's rate first grows over the first fifth of the rounds.

    Attributes:
        rounds: number of rounds of the run.
        rate: automatic rate of SGD, set by plans with noise; None for Adam at `NON_PRIVATE_RATE`.
    """

    rounds: int = field(default=1, kw_only=True, compare=False)
    rate: AutomaticRate | None = field(default=None, kw_only=True, compare=False)

    @property
    def stepping(self) -> ServerOptimizer:
        """SGD or Adam."""
        if self.rate is None:
            return ServerOptimizer("adam", NON_PRIVATE_RATE)
        return ServerOptimizer("sgd", 1.0)

    def torch_optimizer(self, values: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Return that of `stepping`."""
        return self.stepping.torch_optimizer(values)

    def rate_share(
        self, round: int, release: Release, state: Tensors, noise_stddev: float
    ) -> tuple[float, Tensors]:
        """Return the learning rate of a round, and the signals measured so far.

        The rate grows once, after the first tenth of the rounds. Later signals would also measure
        the overshoot of a large rate, and would raise it further.
        """
        share = self.rate_schedule.share(round)
        if self.rate is None:
            return share, {}
        rate, signals = self.rate, state.get(_SIGNALS, torch.zeros(0, dtype=torch.float64))
        entries = release.num_entries
        if round < self._num_measured:
            signal = rate.signal(release.norm**2, noise_stddev, entries)
            signals = torch.cat([signals, torch.tensor([signal], dtype=torch.float64)])
        used = signals if round >= self._num_measured else signals[:0]
        return self._full_rate(noise_stddev, used, entries) * share, {_SIGNALS: signals}

    @property
    def rate_schedule(self) -> RateSchedule:
        """The config's schedule; by default a linear fall to 0, for Adam after a warm-up."""
        warmup = 0 if self.rate is not None else self.rounds // 5
        return self.schedule or RateSchedule("linear", self.rounds, warmup)

    @property
    def _num_measured(self) -> int:
        """Number of first rounds that measure the signal; the rate may grow after them."""
        return max(3, self.rounds // 10)

    def _full_rate(self, noise_stddev: float, signals: torch.Tensor, entries: int) -> float:
        """Return the rate before the schedule, raised if there are signals."""
        if self.rate is None:
            return NON_PRIVATE_RATE
        rate = self.rate
        squared = math.fsum(self.rate_schedule.share(each) ** 2 for each in range(self.rounds))
        growth = 1.0
        if len(signals):
            growth = rate.growth(float(signals.mean()) - rate.error(len(signals), entries))
        return rate.of(growth, noise_stddev, squared)

    def reported(self, state: ServerState, noise_stddev: float) -> dict[str, str]:
        """Return the initial rate, and the one after the measured rounds, before the schedule."""
        signals = state.optimizer_state.get(_SIGNALS, torch.zeros(0))
        if state.round <= self._num_measured:  # no round has stepped at the grown rate
            signals = signals[:0]
        entries = sum(value.numel() for value in state.parameters.values())
        rates = [self._full_rate(noise_stddev, some, entries) for some in (signals[:0], signals)]
        text = " then ".join(dict.fromkeys(f"{rate:.3g}" for rate in rates))
        return {"server.learning_rate": f"automatic: {text}"}


class _OfTorch:
    """A torch optimizer as a part that the config names."""

    build = ServerOptimizer.build

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def options(self) -> type[ServerConfig]:
        """Config class of its keys."""
        return torch_options(self.name)


class AUTO:
    """The default: `AutomaticOptimizer` without a configured learning rate, else Adam."""

    options = torch_options("auto")

    @staticmethod
    def build(options: ServerConfig) -> ServerOptimizer:
        """Return the optimizer of a config."""
        if options.learning_rate is not None:
            return ServerOptimizer.build(options.model_copy(update={"optimizer": "adam"}))
        return AutomaticOptimizer("auto", 1.0, options.max_gradient_norm)


TORCH = SimpleNamespace(**{name: _OfTorch(name) for name in KINDS})
"""The optimizers that `pyproject.toml` registers."""
