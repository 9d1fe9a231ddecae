"""Products by oneDNN are the products that they stand for, and stay out where they must."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap
from transformers.pytorch_utils import Conv1D

from fedsim.clients.engines.pass_shape import pass_shape
from fedsim.clients.models import cpu_kernels as onednn_products
from fedsim.clients.models.cpu_kernels import is_faster
from fedsim.clients.models.cpu_kernels import onednn_products as by_onednn
from fedsim.materials import Materials
from tests.conftest import Patch
from tests.contracts.layer_samples import network

ROWS, WIDTH, COLUMNS = 600, 96, 1000
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# (inputs, weight (columns, width), bias) -> product, as networks spell it.
SPELLINGS: dict[str, Product] = {
    "linear": F.linear,
    "linear, no bias": lambda x, w, b: F.linear(x, w) + b,
    "conv1d": lambda x, w, b: torch.addmm(b, x.flatten(0, -2), w.T.contiguous()).view(
        *x.shape[:-1], len(w)
    ),
    "table, transposed": lambda x, w, b: x @ w.T + b,
    "matmul": lambda x, w, b: torch.matmul(x, w.T.contiguous()) + b,
    "of a slice": lambda x, w, b: F.linear(x, w.repeat(1, 2)[:, :WIDTH], b),
}


@pytest.fixture
def _everywhere(monkeypatch: Patch) -> None:
    monkeypatch.setattr(onednn_products, "is_faster", lambda: True)


def sides(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((3, ROWS // 3, WIDTH), (COLUMNS, WIDTH), (COLUMNS,))
    inputs, weight, bias = (torch.randn(size, generator=generator) for size in sizes)
    return inputs, weight, bias


def num_convolutions(product: Callable[[], object]) -> int:
    """Return how many convolutions it takes."""
    with mock.patch.object(
        onednn_products, "_convolved", side_effect=onednn_products._convolved
    ) as convolved:
        product()
    return convolved.call_count


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_product_and_gradient_are_those_of_float64(spelling: str) -> None:
    inputs, weight, bias = sides()
    inputs.requires_grad_()
    exact = inputs.detach().double().requires_grad_()
    direction = torch.randn(3, ROWS // 3, COLUMNS)

    def product() -> torch.Tensor:
        with by_onednn({"weight": weight}):
            return SPELLINGS[spelling](inputs, weight, bias)

    assert num_convolutions(product) == (0 if spelling == "of a slice" else 1)
    computed = product()
    expected = F.linear(exact, weight.double(), bias.double())
    torch.testing.assert_close(computed.double(), expected, rtol=1e-5, atol=1e-4)
    (slope,) = torch.autograd.grad(computed, inputs, direction)
    (steep,) = torch.autograd.grad(expected, exact, direction.double())
    torch.testing.assert_close(slope.double(), steep, rtol=1e-5, atol=1e-3)


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize("dirt", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("spelling", ["linear", "conv1d", "table, transposed"])
def test_a_dirty_row_is_nobody_elses(spelling: str, dirt: float) -> None:
    """Else a user whose numbers are dropped would take others with it; no size fits a vector."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(1001, 97, generator=generator)
    bias = torch.zeros(1001)
    rows = torch.randn(601, 97, generator=generator)
    above = torch.randn(601, 1001, generator=generator)
    others = torch.arange(601) != 7

    def of_the_others(inputs: torch.Tensor, slope: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs.requires_grad_()
        with by_onednn({"weight": weight}):
            outputs: list[torch.Tensor] = []
            taken = num_convolutions(
                lambda: outputs.append(SPELLINGS[spelling](inputs, weight, bias))
            )
        assert taken == 1
        (below,) = torch.autograd.grad(outputs[0], inputs, slope)
        return outputs[0].detach()[others], below[others]

    dirty, dirty_above = rows.clone(), above.clone()
    dirty[7], dirty_above[7] = dirt, dirt
    clean = of_the_others(rows, above)
    for one, other in zip(clean, of_the_others(dirty, dirty_above), strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("_everywhere")
def test_a_layer_of_transformers_is_taken_over() -> None:
    inputs, weight, bias = sides()
    layer = Conv1D(COLUMNS, WIDTH).requires_grad_(False)  # type: ignore[no-untyped-call]
    layer.weight.copy_(weight.T)
    layer.bias.copy_(bias)
    with by_onednn({}):
        assert num_convolutions(lambda: layer(inputs)) == 1
        computed = layer(inputs)
    torch.testing.assert_close(computed, F.linear(inputs, weight, bias), rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize(
    "change",
    [
        lambda x, w: (x[:1, :150], w.repeat(2, 1)),  # few rows
        lambda x, w: (x, w[:10]),  # small weights
        lambda x, w: (x.double(), w.double()),
        lambda x, w: (x.bfloat16(), w.bfloat16()),
    ],
)
def test_what_is_not_worth_it_stays_as_it_was(
    change: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    inputs, weight = change(*sides()[:2])
    expected, scored = F.linear(inputs, weight), inputs @ weight.T
    with by_onednn({"weight": weight}):
        assert num_convolutions(lambda: F.linear(inputs, weight)) == 0
        assert num_convolutions(lambda: inputs @ weight.T) == 0
        assert torch.equal(F.linear(inputs, weight), expected)
        assert torch.equal(inputs @ weight.T, scored)


@pytest.mark.usefixtures("_everywhere")
def test_a_sum_with_a_matrix_is_no_layer() -> None:
    inputs, weight, _ = sides()
    rows, other = inputs.flatten(0, 1), torch.randn(ROWS, COLUMNS)
    with by_onednn({"weight": weight}):
        computed = torch.addmm(other, rows, weight.T.contiguous())
    torch.testing.assert_close(computed, other + rows @ weight.T, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("_everywhere")
def test_weights_that_want_gradients_are_left_to_torch() -> None:
    inputs, weight, _ = sides()

    def loss(weight: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        with by_onednn({"weight": weight}):
            return F.linear(inputs, weight).square().sum()

    assert num_convolutions(lambda: loss(weight.requires_grad_(), inputs)) == 0
    each = vmap(grad(loss), in_dims=(None, 0))
    several = torch.stack([inputs.flatten(0, 1)] * 2)
    assert num_convolutions(lambda: each(weight.detach(), several)) == 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert num_convolutions(lambda: loss(weight.detach(), inputs)) == 0


@pytest.mark.usefixtures("_everywhere")
def test_a_networks_logits_are_the_same_up_to_rounding(materials: Materials) -> None:
    model = materials.model
    parameters = model.initial_parameters()
    tokens = torch.randint(0, model.vocabulary_size, (40, 30))
    computed: list[torch.Tensor] = []
    assert num_convolutions(lambda: computed.append(model.logits(parameters, tokens))) > 0
    wanted = {name: value.requires_grad_() for name, value in parameters.items()}
    torch.testing.assert_close(computed[0], model.logits(wanted, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("capability", "vendor", "wanted"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
        ("AVX512", None, False),
    ],
)
def test_only_amds_processors_with_avx512_gain(
    monkeypatch: Patch, tmp_path: Path, capability: str, vendor: str | None, wanted: bool
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if vendor is not None:
        cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    monkeypatch.setattr(onednn_products, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert is_faster.__wrapped__() is wanted


def test_the_weights_alone_decide_by_which_library_a_pass_is_computed() -> None:
    """Else a user who fills a pass would decide how the others' products are rounded."""
    model, _ = network("gpt2 tied", torch.float32)
    assert pass_shape(model).least_tokens >= onednn_products._LEAST_ROWS
    for rows in (pass_shape(model).least_tokens, 4096):
        for weight in (torch.ones(255, 256), torch.ones(256, 256)):
            taken = onednn_products._worthwhile(torch.ones(rows, 256), weight)
            assert taken == (len(weight) == 256)
