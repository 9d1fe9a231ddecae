"""The digest of parameters: every bit, dtype, shape and name counts; order and strides do not."""

from __future__ import annotations

import pytest
import torch

from fedsim.tensors import parameters_digest

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_any_dtype_and_a_scalar_have_one(dtype: torch.dtype) -> None:
    ones = {"a": torch.ones((), dtype=dtype), "b": torch.ones(3, dtype=dtype)}
    other = {**ones, "b": torch.zeros(3, dtype=dtype)}
    assert parameters_digest(ones) != parameters_digest(other)


def test_a_digest_stays_what_it_is_from_version_to_version() -> None:
    """Files that are kept on disk, and seeds, hang on it."""
    assert parameters_digest(PARAMETERS) == (
        "41852eba7d16cb38caca296fd2c028abd3a757bc117b5eb217a5642b24a33527"
    )
