"""The server's step is torch's own, with the state passed through values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedsim.registry import names
from fedsim.server.over_rounds import RateSchedule
from fedsim.server.torch_optimizers import KINDS
from fedsim.server_optimizer import ServerOptimizer
from fedsim.tensors import Tensors

OPTIMIZERS = {
    **{name: ServerOptimizer(name, 0.05) for name in KINDS},
    "sgd, momentum": ServerOptimizer("sgd", 0.05, keys={"momentum": 0.9, "nesterov": True}),
    "adamw, plain": ServerOptimizer(
        "adamw", 0.05, keys={"betas": (0.8, 0.95), "weight_decay": 0.1, "fused": False}
    ),
    "adam, scheduled": ServerOptimizer("adam", 0.05, schedule=RateSchedule("cosine", 4, 1, 0.1)),
    "adamw, debiased": ServerOptimizer("adamw", 0.05, debias=True),
}
NAMES = pytest.mark.parametrize("name", OPTIMIZERS)


def start() -> dict[str, torch.Tensor]:
    """A matrix, a vector, a scalar; one name with the separator of the flat state in it."""
    generator = torch.Generator().manual_seed(1)
    shapes: dict[str, tuple[int, ...]] = {"b.weight": (4, 3), "a/odd.bias": (5,), "scale": ()}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def gradient(step: int) -> dict[str, torch.Tensor]:
    """Float64, as a release is."""
    generator = torch.Generator().manual_seed(100 + step)
    return {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in start().items()
    }


def same_bits(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name])
        for name in left
    )


def through_values(name: str, steps: int) -> tuple[Tensors, Tensors]:
    optimizer = OPTIMIZERS[name]
    parameters: Tensors = start()
    state: Tensors = {}
    for step in range(steps):
        parameters, state = optimizer.step(
            parameters, gradient(step), state, round=step, noise_stddev=0.5
        )
    return parameters, state


def of_torch(name: str, values: list[torch.Tensor]) -> torch.optim.Optimizer:
    """What a user of torch would write."""
    kind = KINDS[name.partition(",")[0]]
    if kind in (torch.optim.Adam, torch.optim.AdamW) and "plain" not in name:
        return kind(values, lr=0.05, fused=True)  # the others round otherwise
    if kind is torch.optim.Muon and values[0].ndim == 2:
        return torch.optim.Muon(values, lr=0.05, adjust_lr_fn="match_rms_adamw")
    if kind is torch.optim.Muon:
        return torch.optim.AdamW(values, lr=0.05, fused=True)
    return kind(values, lr=0.05, **OPTIMIZERS[name].keys)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "debiased" not in name])
def test_five_steps_are_torchs_five_steps(name: str) -> None:
    expected = {key: value.clone().requires_grad_() for key, value in start().items()}
    optimizers = [of_torch(name, [value]) for value in expected.values()]
    shares = [0.5, 1.0, 0.775, 0.325, 0.1] if "scheduled" in name else [1.0] * 5
    for step, share in enumerate(shares):
        for key, value in gradient(step).items():
            expected[key].grad = value.float()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.05 * share
            optimizer.step()
    parameters, _ = through_values(name, 5)
    after = {key: value.detach() for key, value in expected.items()}
    if "scheduled" in name:  # the shares above are rounded
        assert all(torch.allclose(parameters[key], after[key], atol=1e-7) for key in after)
    else:
        assert same_bits(parameters, after)


def test_every_optimizer_of_torch_can_be_named() -> None:
    """A torch with another one: add it to pyproject.toml."""
    assert {*KINDS} <= {*names("server_optimizers")}
    assert {"sgd", "adamw", "muon"} <= {*KINDS}
    assert not {"optimizer", "lbfgs", "sparseadam"} & {*KINDS}


@NAMES
def test_the_state_is_flat_tensors_and_survives_a_copy(name: str) -> None:
    parameters, state = through_values(name, 3)
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert {path.rpartition("/")[0] for path in state} <= parameters.keys()
    copy = {path: value.clone() for path, value in reversed(list(state.items()))}
    moved, after = OPTIMIZERS[name].step(parameters, gradient(3), copy, round=3, noise_stddev=0.5)
    expected, expected_state = through_values(name, 4)
    assert same_bits(moved, expected)
    assert same_bits(after, expected_state)


@NAMES
def test_parameters_and_state_stay_as_they_are(name: str) -> None:
    parameters, state = through_values(name, 2)
    given = gradient(2)
    tensors = dict(given)
    before = [{key: value.clone() for key, value in d.items()} for d in (parameters, given, state)]
    moved, after = OPTIMIZERS[name].step(parameters, given, state)
    assert given == {}  # used up
    assert same_bits(tensors, before[1])
    assert same_bits(parameters, before[0])
    assert same_bits(state, before[2])
    assert all(value.grad is None for value in (*parameters.values(), *moved.values()))
    assert not any(value.requires_grad for value in moved.values())
    addresses = {value.data_ptr() for value in (*parameters.values(), *state.values())}
    assert not addresses & {value.data_ptr() for value in (*moved.values(), *after.values())}


@NAMES
def test_a_state_that_is_not_kept_gives_its_memory_and_no_second_step(name: str) -> None:
    parameters, state = through_values(name, 2)
    held = {value.data_ptr() for value in state.values()}
    moved, after = OPTIMIZERS[name].step(
        parameters, gradient(2), state, round=2, noise_stddev=0.5, keep=False
    )
    expected, expected_state = through_values(name, 3)
    assert same_bits(moved, expected)
    assert same_bits(after, expected_state)
    assert {value.data_ptr() for value in after.values()} == held
    assert not state  # its memory is the next one's


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in gradient(0).items() if key != name}


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (without("scale"), r"missing \['scale'\]"),
        ({**gradient(0), "extra": torch.zeros(2)}, r"unknown \['extra'\]"),
        ({**gradient(0), "b.weight": torch.zeros(3, 4)}, r"'b.weight' has shape \(3, 4\)"),
        # One entry would broadcast over the whole tensor without a word.
        ({**gradient(0), "a/odd.bias": torch.zeros(1)}, r"'a/odd.bias' has shape \(1,\)"),
    ],
)
def test_a_gradient_of_another_layout_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ServerOptimizer("adam", 0.1).step(start(), wrong, {})


@pytest.mark.parametrize("norm", [0.01, 1e6])
def test_a_long_gradient_is_shortened_as_torch_does(norm: float) -> None:
    values = {name: value.clone().requires_grad_() for name, value in start().items()}
    for name, value in values.items():
        value.grad = gradient(0)[name].to(value.dtype)
    torch.nn.utils.clip_grad_norm_(list(values.values()), norm)
    torch.optim.SGD(list(values.values()), lr=0.05).step()
    moved, _ = ServerOptimizer("sgd", 0.05, max_gradient_norm=norm).step(start(), gradient(0), {})
    for name, value in values.items():
        assert torch.allclose(moved[name], value.detach(), rtol=1e-5, atol=1e-8)
    free, _ = ServerOptimizer("sgd", 0.05).step(start(), gradient(0), {})
    assert same_bits(moved, free) == (norm == 1e6)


def debiased(
    gradients: list[npt.NDArray[np.float64]],
    stddevs: list[float],
    *,
    decoupled: bool,
    least: float,
) -> npt.NDArray[np.float64]:
    """DP-AdamBC by its formula, in float64, from ones; rate 0.05, weight decay 0.1."""
    value, rate, decay, (beta1, beta2) = np.ones(len(gradients[0])), 0.05, 0.1, (0.8, 0.95)
    for step in range(1, len(gradients) + 1):
        if decoupled:
            value *= 1.0 - rate * decay
        else:
            gradients[step - 1] = gradients[step - 1] + decay * value
        ages = np.arange(step)[::-1]
        weights = [(1.0 - b) * b**ages / (1.0 - b**step) for b in (beta1, beta2)]
        mean = weights[0] @ np.array(gradients[:step])
        square = weights[1] @ np.array(gradients[:step]) ** 2
        noise = weights[1] @ np.array(stddevs[:step]) ** 2
        floor = max(least, noise * np.sqrt(2.0 * np.sum(weights[1] ** 2)))
        value = value - rate * mean / np.sqrt(np.maximum(square - noise, floor))
    return value


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("eps", [None, 0.9])
def test_debiased_steps_are_the_formula(name: str, eps: float | None) -> None:
    rng, stddevs = np.random.default_rng(3), [0.7, 0.7, 0.5, 0.4, 0.3, 0.2]
    gradients = [rng.normal(size=400) * stddev + 0.3 for stddev in stddevs]
    keys: dict[str, Any] = {"betas": (0.8, 0.95), "weight_decay": 0.1}
    if eps is not None:
        keys["eps"] = eps
    optimizer = ServerOptimizer(name, 0.05, 2.0, keys=keys, debias=True)
    parameters: Tensors = {"w": torch.ones(400)}
    state: Tensors = {}
    shares = []  # of the gradient that max_gradient_norm leaves, and of its noise
    for step, (given, stddev) in enumerate(zip(gradients, stddevs, strict=True)):
        shares.append(min(1.0, 2.0 / float(np.linalg.norm(given))))
        parameters, state = optimizer.step(
            parameters, {"w": torch.tensor(given)}, state, round=step, noise_stddev=stddev
        )
    expected = debiased(
        [share * given for share, given in zip(shares, gradients, strict=True)],
        [share * stddev for share, stddev in zip(shares, stddevs, strict=True)],
        decoupled=name == "adamw",
        least=0.0 if eps is None else eps**2,
    )
    np.testing.assert_allclose(parameters["w"].numpy(), expected, rtol=2e-4, atol=2e-5)


def test_the_freed_moment_is_that_of_the_signal() -> None:
    """Adam's own would be 26 times as large."""
    optimizer, rng = ServerOptimizer("adam", 0.0, debias=True), torch.Generator().manual_seed(0)
    parameters: Tensors = {"w": torch.zeros(20_000)}
    state: Tensors = {}
    for _ in range(100):
        noisy = 0.2 + torch.randn(20_000, generator=rng, dtype=torch.float64)
        parameters, state = optimizer.step(parameters, {"w": noisy}, state, noise_stddev=1.0)
    freed = (state["w/square"].mean() - state["w/noise"]) / (1.0 - 0.999**100)
    assert float(freed) == pytest.approx(0.04, abs=0.004)


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [("sgd", 0), ("adam", 2), ("adafactor", 0), ("muon", 1), ("adamw, debiased", 2)],
)
def test_copies_of_the_parameters_in_its_state(optimizer: str, copies: int) -> None:
    assert OPTIMIZERS[optimizer].copies == copies


def test_debiasing_needs_a_second_moment() -> None:
    with pytest.raises(ValueError, match=r"^debias = True: works with"):
        ServerOptimizer("rmsprop", 0.1, debias=True)
