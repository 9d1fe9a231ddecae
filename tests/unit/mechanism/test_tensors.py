"""Tensors: their digest, their norm, and whether they are finite."""

from __future__ import annotations

import math

import pytest
import torch

from fedsim.tensors import all_finite, as_float32_, fold_, l2_norm, parameters_digest, zeros_like

PARAMETERS = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.tensor([0.0, 1.0])}


def test_order_and_strides_do_not_change_a_digest() -> None:
    digest = parameters_digest(PARAMETERS)
    assert parameters_digest(dict(reversed(PARAMETERS.items()))) == digest
    strided = PARAMETERS["weight"].T.contiguous().T
    assert not strided.is_contiguous()
    assert parameters_digest({**PARAMETERS, "weight": strided}) == digest
    assert len(digest) == 64


def test_every_bit_dtype_shape_and_name_does() -> None:
    bias = PARAMETERS["bias"]
    changed = [
        torch.nextafter(bias, torch.tensor(10.0)),
        torch.tensor([-0.0, 1.0]),
        bias.view(torch.int32),  # the same bytes
        bias[:, None],
        bias[:0],
    ]
    digests = {parameters_digest({**PARAMETERS, "bias": value}) for value in changed}
    renamed = {"weight": PARAMETERS["weight"], "bias2": bias}
    swapped = {"weight": bias, "bias": PARAMETERS["weight"]}
    digests |= {parameters_digest(one) for one in (PARAMETERS, renamed, swapped)}
    assert len(digests) == len(changed) + 3


def test_a_digest_stays_what_it_is_from_version_to_version() -> None:
    """Files that are kept on disk, and seeds, hang on it."""
    assert parameters_digest(PARAMETERS) == (
        "41852eba7d16cb38caca296fd2c028abd3a757bc117b5eb217a5642b24a33527"
    )


def test_a_norm_by_parts_is_the_norm_in_float64() -> None:
    """Long float32 tensors are taken in parts; entries that float32 sums would lose count."""
    values = torch.cat([torch.full((300_001,), 1e-4), torch.tensor([1e4])])
    exact = math.sqrt(300_001 * float(values[0].double()) ** 2 + 1e8)
    for value in (values, values.view(2, -1).T, values.requires_grad_()):
        assert l2_norm({"a": value, "b": torch.zeros(0)}) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_entry_that_is_not_finite_is_seen(wrong: float, dtype: torch.dtype) -> None:
    largest = torch.full((100_000,), torch.finfo(dtype).max, dtype=dtype)
    values = {"none": torch.zeros(0, dtype=dtype), "a": largest, "b": -largest.view(10, -1)}
    assert all_finite(values)
    for place in (0, 77_777, 99_999):
        broken = largest.clone()
        broken[place] = wrong
        assert not all_finite({**values, "b": broken})
    assert all_finite({})


@pytest.mark.parametrize("threads", [1, 3])
def test_sums_folded_at_once_are_sums_folded_one_by_one(threads: int) -> None:
    """To the bit, over parts, threads, empty and transposed tensors; norms are of each alone."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"long": (3, 70_001), "empty": (0, 4), "scalar": (), "transposed": (50, 30)}
    sums = [
        {name: torch.randn(shape, generator=generator) * 10.0**k for name, shape in shapes.items()}
        for k in range(-2, 3)
    ]
    for one in sums:
        one["transposed"] = one["transposed"].T
    expected = {name: value.double() for name, value in zeros_like(sums[0]).items()}
    for one in sums:
        expected = {name: value + one[name].double() for name, value in expected.items()}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        total = zeros_like(sums[0], torch.float64)
        norms = fold_(total, sums)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(total[name], value) for name, value in expected.items())
    assert norms == pytest.approx([l2_norm(one) for one in sums], rel=1e-14)


def test_a_sum_of_another_layout_is_refused_before_anything_is_added() -> None:
    total = {"w": torch.zeros(2).double()}
    with pytest.raises(ValueError, match="'w' has shape"):
        fold_(total, [{"w": torch.ones(2)}, {"w": torch.ones(3)}])
    assert total["w"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (7, 3), (2**16 + 1,), (5, 2**16 - 1), (2**18 + 3,)]
)
def test_a_float64_tensor_becomes_float32_in_its_own_memory(shape: tuple[int, ...]) -> None:
    """Also one among others in a block, which stay as they are; more than a part at a time."""
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    count = values.numel()
    block = torch.full((count + 2,), 3.0, dtype=torch.float64)
    inside = block[1 : 1 + count].view(shape).copy_(values)
    narrow = as_float32_(inside)
    assert narrow.shape == shape
    assert torch.equal(narrow, values.float())
    assert block[0] == block[-1] == 3.0
    if count:
        assert narrow.data_ptr() == inside.data_ptr()
