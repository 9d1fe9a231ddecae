"""The server's step is torch's own, with the state passed through values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from fedsim.server_optimizer import ServerOptimizer
from fedsim.tensors import Tensors

TORCHS_OWN: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": partial(torch.optim.Adam, fused=True),  # the others round otherwise
    "adafactor": torch.optim.Adafactor,
}
NAMES = pytest.mark.parametrize("name", TORCHS_OWN)


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
    optimizer = ServerOptimizer(name, 0.05)
    parameters: Tensors = start()
    state: Tensors = {}
    for step in range(steps):
        parameters, state = optimizer.step(parameters, gradient(step), state)
    return parameters, state


@NAMES
def test_five_steps_are_torchs_five_steps(name: str) -> None:
    expected = {key: value.clone().requires_grad_() for key, value in start().items()}
    optimizer = TORCHS_OWN[name](list(expected.values()), lr=0.05)
    for step in range(5):
        for key, value in gradient(step).items():
            expected[key].grad = value.float()
        optimizer.step()
    parameters, _ = through_values(name, 5)
    assert same_bits(parameters, {key: value.detach() for key, value in expected.items()})


@NAMES
def test_the_state_is_flat_tensors_and_survives_a_copy(name: str) -> None:
    parameters, state = through_values(name, 3)
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert {path.rpartition("/")[0] for path in state} <= parameters.keys()
    copy = {path: value.clone() for path, value in reversed(list(state.items()))}
    optimizer = ServerOptimizer(name, 0.05)
    moved, after = optimizer.step(parameters, gradient(3), copy)
    expected, expected_state = through_values(name, 4)
    assert same_bits(moved, expected)
    assert same_bits(after, expected_state)


@NAMES
def test_parameters_and_state_stay_as_they_are(name: str) -> None:
    parameters, state = through_values(name, 2)
    given = gradient(2)
    tensors = dict(given)
    before = [{key: value.clone() for key, value in d.items()} for d in (parameters, given, state)]
    moved, after = ServerOptimizer(name, 0.05).step(parameters, given, state)
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
    optimizer = ServerOptimizer(name, 0.05)
    moved, after = optimizer.step(parameters, gradient(2), state, keep=False)
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
@NAMES
def test_a_gradient_of_another_layout_is_refused(
    name: str, wrong: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        ServerOptimizer(name, 0.1).step(start(), wrong, {})


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
