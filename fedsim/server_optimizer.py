"""The server's step: torch's own optimizers as functions of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from fedsim.config.schema import ServerConfig
from fedsim.server.automatic_rate import AutomaticRate
from fedsim.server.debiased_adam import DebiasedAdam
from fedsim.server.over_rounds import Average, RateSchedule
from fedsim.server.torch_optimizers import KINDS, keys_of, torch_optimizer, torch_options
from fedsim.state import ServerState
from fedsim.tensors import Tensors, as_float32_, check_same_layout, l2_norm, threads_by_size


@dataclass(frozen=True)
class ServerOptimizer:
    """An optimizer of torch, by name (Charles et al. 2024, App. F).

    The released estimate is the gradient. For local SGD it is the mean of θ_server − θ_local,
    so that SGD with learning rate 1 is McMahan et al.'s averaging. Where it is longer than
    `max_gradient_norm` it is scaled down to that: of a mean over a batch, batch clipping (Pascanu
    et al. 2013), which bounds no single user's share and gives no guarantee.

    Another optimizer is a subclass that overrides `torch_optimizer`, under an entry point of the
    group `fedsim.server_optimizers`: `docs/how-to/own-parts.md`. Its state has tensors alone. It
    sees releases, which are paid for, so no ε rests on it. Schedule and average serve it too.

    Attributes:
        name: of the optimizer: for torch's, its class in lower case.
        learning_rate: of every round, before `schedule`.
        max_gradient_norm: the longest gradient.
        keys: other arguments of torch's optimizer.
        schedule: multiplies the learning rate; None: it is constant.
        average: of the parameters, which is evaluated and saved in their place.
        debias: free the second moment of "adam" or "adamw" of the noise: `DebiasedAdam`.

    Raises:
        ValueError: `debias` for an optimizer that has no second moment.
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
            raise ValueError('debias = True: frees the second moment of "adam" and "adamw" alone')

    @classmethod
    def build(cls, options: ServerConfig) -> ServerOptimizer:
        """Return the optimizer of a config; `options` is the table `[server]`."""
        rate, norm = options.learning_rate, options.max_gradient_norm
        if rate is None:
            raise ValueError("learning_rate: missing")
        return cls(options.optimizer, rate, norm, keys=keys_of(options), debias=options.debias)

    def torch_optimizer(self, values: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Return a new optimizer of `values`, without state."""
        return torch_optimizer(self.name, values, self.learning_rate, self.keys, debias=self.debias)

    def advance(
        self,
        state: ServerState,
        release: dict[str, torch.Tensor],
        noise_stddev: float,
        *,
        keep: bool,
    ) -> ServerState:
        """Return the state with the next parameters, optimizer state and average.

        Args:
            state: before the step.
            release: the gradient; used up.
            noise_stddev: of the noise in each entry of it.
            keep: as of `step`.
        """
        parameters, optimizer_state = self.step(
            state.parameters,
            release,
            state.optimizer_state,
            round=state.round,
            noise_stddev=noise_stddev,
            keep=keep,
        )
        average = state.average
        if self.average is not None:
            average = self.average.after(state.round, average, parameters)
        return replace(
            state, parameters=parameters, optimizer_state=optimizer_state, average=average
        )

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
        """Return the next parameters and optimizer state; parameters stay as they are.

        Args:
            parameters: float32 tensors.
            gradient: same layout, any float dtype. Used up: the dict is empty afterwards, so that a
                tensor's memory is free before the next tensor needs some.
            state: flat, "parameter/key" → tensor; empty before the first step.
            round: whose learning rate it is, from 0.
            noise_stddev: of the noise in each entry of the gradient; for `debias`.
            keep: whether the state and the gradient's tensors stay as they are. Without, these are
                overwritten, and the state's memory becomes the next one's, for Adam two copies of
                the parameters; the given dict is empty afterwards.

        Examples:
            >>> start = {"w": torch.tensor([1.0])}
            >>> after, _ = ServerOptimizer("sgd", 0.5).step(start, {"w": torch.tensor([0.2])}, {})
            >>> round(after["w"].item(), 6), start["w"].item()
            (0.9, 1.0)
        """
        check_same_layout(parameters, gradient)
        factor = self._factor(gradient)
        share, remembered = self.rate_share(round, gradient, state, noise_stddev)
        before: dict[str, dict[str, torch.Tensor]] = {name: {} for name in parameters}
        for path, value in state.items():
            if path in remembered:
                continue
            name, _, key = path.rpartition("/")
            before[name][key] = value
        if not keep and isinstance(state, dict):
            state.clear()
        moved: dict[str, torch.Tensor] = {}
        after: dict[str, torch.Tensor] = dict(remembered)
        with threads_by_size(parameters):
            for name, value in parameters.items():
                moved[name] = entry = value.detach().clone()
                given = gradient.pop(name)
                given = given if factor == 1.0 else given * factor
                entry.grad = given.to(entry.dtype) if keep else as_float32_(given)
                del given
                optimizer = self.torch_optimizer([entry])
                for group in optimizer.param_groups:
                    group["lr"] *= share
                if isinstance(optimizer, DebiasedAdam):
                    optimizer.noise_variance = (factor * noise_stddev) ** 2
                if before[name]:
                    # What `load_state_dict` does, without its second copy.
                    optimizer.state[entry] = {
                        key: old.to(entry.device, copy=keep) for key, old in before[name].items()
                    }
                optimizer.step()
                entry.grad = None
                after |= {f"{name}/{key}": new for key, new in optimizer.state[entry].items()}
        return moved, after

    def rate_share(
        self, round: int, gradient: Tensors, state: Tensors, noise_stddev: float
    ) -> tuple[float, Tensors]:
        """Return the factor on a round's learning rate, and the state to store.

        Arguments are those of `step`; the stored state comes back in the next round's `state`.
        """
        return 1.0 if self.schedule is None else self.schedule.share(round), {}

    def _factor(self, gradient: Tensors) -> float:
        norm = math.inf if self.max_gradient_norm is None else self.max_gradient_norm
        length = 0.0 if math.isinf(norm) else l2_norm(gradient)
        return 1.0 if length <= norm else norm / length

    def reported(self, state: ServerState, noise_stddev: float) -> dict[str, str]:
        """Return settings that the config does not show, for the report of a run's last state."""
        return {}

    @property
    def copies(self) -> int:
        """How many float32 copies of a matrix the optimizer's state and the average are."""
        value = torch.zeros(2, 3)
        value.grad = torch.zeros(2, 3)
        optimizer = self.torch_optimizer([value])
        optimizer.step()
        state = optimizer.state[value].values()
        moments = [entry for entry in state if entry.shape == value.shape]
        return len(moments) + (self.average is not None)


NON_PRIVATE_RATE = 0.002
"""Of Adam, where no noise is added."""
_SIGNALS = "rate/signals"


@dataclass(frozen=True)
class AutomaticOptimizer(ServerOptimizer):
    """SGD at an automatic learning rate, or without noise Adam; the rate falls to 0 evenly.

    Adam's rate grows over the first fifth of the rounds.

    Attributes:
        rounds: of the run.
        rate: of SGD, which a plan with noise gives. None: Adam at `NON_PRIVATE_RATE`.
    """

    rounds: int = field(default=1, kw_only=True, compare=False)
    rate: AutomaticRate | None = field(default=None, kw_only=True, compare=False)

    def torch_optimizer(self, values: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Return SGD or Adam."""
        if self.rate is None:
            return torch_optimizer("adam", values, NON_PRIVATE_RATE, {})
        return torch_optimizer("sgd", values, 1.0, {})

    def rate_share(
        self, round: int, gradient: Tensors, state: Tensors, noise_stddev: float
    ) -> tuple[float, Tensors]:
        """Return the learning rate of a round.

        It grows once, after the first tenth of the rounds: later signals would measure how far a
        large rate overshoots, and make it larger.
        """
        share = self.rate_schedule.share(round)
        if self.rate is None:
            return share, {}
        rate, signals = self.rate, state.get(_SIGNALS, torch.zeros(0, dtype=torch.float64))
        entries = sum(value.numel() for value in gradient.values())
        if round < self._num_measured:
            signal = rate.signal(l2_norm(gradient) ** 2, noise_stddev, entries)
            signals = torch.cat([signals, torch.tensor([signal], dtype=torch.float64)])
        heard = signals if round >= self._num_measured else signals[:0]
        return self._full_rate(noise_stddev, heard, entries) * share, {_SIGNALS: signals}

    @property
    def rate_schedule(self) -> RateSchedule:
        """The config's schedule, or a fall to 0, after Adam's warm-up."""
        warmup = 0 if self.rate is not None else self.rounds // 5
        return self.schedule or RateSchedule("linear", self.rounds, warmup)

    @property
    def _num_measured(self) -> int:
        """Rounds that measure the signal; the rate may grow after them."""
        return max(3, self.rounds // 10)

    def _full_rate(self, noise_stddev: float, signals: torch.Tensor, entries: int) -> float:
        """Return the rate without the schedule, grown if there are signals."""
        if self.rate is None:
            return NON_PRIVATE_RATE
        rate = self.rate
        squared = math.fsum(self.rate_schedule.share(each) ** 2 for each in range(self.rounds))
        growth = 1.0
        if len(signals):
            growth = rate.growth(float(signals.mean()) - rate.error(len(signals), entries))
        return rate.of(growth, noise_stddev, squared)

    def reported(self, state: ServerState, noise_stddev: float) -> dict[str, str]:
        """Return the rate before the schedule, and that after the first tenth of the rounds."""
        signals = state.optimizer_state.get(_SIGNALS, torch.zeros(0))
        if state.round <= self._num_measured:  # no round has stepped at the grown rate
            signals = signals[:0]
        entries = sum(value.numel() for value in state.parameters.values())
        rates = [self._full_rate(noise_stddev, some, entries) for some in (signals[:0], signals)]
        text = " then ".join(dict.fromkeys(f"{rate:.3g}" for rate in rates))
        return {"server.learning_rate": f"automatic: {text}"}


class _OfTorch:
    """An optimizer of torch as a part that a config can name."""

    build = ServerOptimizer.build

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def options(self) -> type[ServerConfig]:
        """The class of its keys."""
        return torch_options(self.name)


class AUTO:
    """The default: automatic where no learning rate is given, else Adam."""

    options = torch_options("auto")

    @staticmethod
    def build(options: ServerConfig) -> ServerOptimizer:
        """Return the optimizer of a config."""
        if options.learning_rate is not None:
            return ServerOptimizer.build(options.model_copy(update={"optimizer": "adam"}))
        return AutomaticOptimizer("auto", 1.0, options.max_gradient_norm)


TORCH = SimpleNamespace(**{name: _OfTorch(name) for name in KINDS})
"""The parts that `pyproject.toml` registers."""
