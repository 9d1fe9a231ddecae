"""Correlated noise against another library's figures, and against published bounds."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from fedsim.noise.matrix import _moved, banded_matrix
from tests.golden.make_matrix_reference import APART, BANDED, PATH, column_of

ROWS: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))


def test_banded_matrices_are_as_good_as_those_of_jax_privacy() -> None:
    rows = [row for row in ROWS if "bands" in row]
    assert [(row["rounds"], row["bands"]) for row in rows] == BANDED
    for row in rows:
        error = banded_matrix(row["rounds"], row["bands"]).error_over(row["rounds"])
        assert error == pytest.approx(row["error"], rel=1e-8), row


def test_a_unit_of_several_rounds_moves_as_much_as_jax_privacy_says() -> None:
    rows = [row for row in ROWS if "apart" in row]
    assert [(row["rounds"], row["apart"]) for row in rows] == APART
    for row in rows:
        times = -(-row["rounds"] // row["apart"])
        moved = math.sqrt(times) * _moved(column_of(row["rounds"]), row["apart"])
        assert moved == pytest.approx(row["moved"], rel=1e-12), row


@pytest.mark.parametrize("rounds", [8, 64, 512, 2048])
def test_as_many_bands_as_rounds_lie_between_published_bounds(rounds: int) -> None:
    """Not below what any matrix must have, and below the square root of the prefix sums.

    ‖M‖∗/T, M the prefix sums with singular values 1/(2 sin((2k-1)π/(4T+2))), bounds every
    factorisation's error from below; in the limit 0.701 + ln(T)/π does, and 0.748 + ln(T)/π is
    reached by matrices that are not Toeplitz (Henzinger, Kalinin and Upadhyay 2025,
    arXiv:2509.14334). The square root, of entries binom(2k, k)/4^k, is Toeplitz.
    """
    k = np.arange(1, rounds + 1)
    least = float((0.5 / np.sin((2 * k - 1) * np.pi / (4 * rounds + 2))).sum()) / rounds
    squares = np.cumprod(np.concatenate([[1.0], (2 * k[:-1] - 1) / (2 * k[:-1])])) ** 2
    root = math.sqrt(squares.sum() * np.cumsum(squares).mean())
    error = banded_matrix(rounds, rounds).error_over(rounds)
    assert least < error < 0.99 * root
    if rounds > 500:
        assert (
            0.701 + math.log(rounds) / math.pi < error < 1.07 * (0.748 + math.log(rounds) / math.pi)
        )
