"""Compute another library's figures of correlated noise, into `matrix_reference.json`.

    pip install jax-privacy==2.0.0     # in an environment of its own
    python tests/golden/make_matrix_reference.py

jax_privacy is by authors of Choquette-Choo et al. 2023 (arXiv:2306.08153), McKenna 2024
(2405.15913) and McMahan et al. 2024 (2408.08868). Two figures: the root mean square noise in
prefix sums of its banded Toeplitz matrices, in units of a round's noise; and how far a unit of
every b-th round moves what a matrix of buffers (column 1, Σ αᵢ λᵢ^(t-1)) multiplies.
"""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PATH = Path(__file__).with_name("matrix_reference.json")
BANDED = [(8, 2), (16, 4), (16, 16), (32, 3), (64, 4), (64, 16), (100, 10), (128, 8), (256, 32)]
BANDED += [(512, 4), (1000, 20), (2000, 64)]
WEIGHTS, DECAYS = (0.45, 0.05), (0.5, 0.97)
APART = [(12, 3), (30, 7), (64, 8), (100, 25), (256, 16), (1000, 300)]


def column_of(rounds: int) -> npt.NDArray[np.float64]:
    """Return the first column of the matrix of buffers."""
    powers = np.array(DECAYS)[:, None] ** np.arange(rounds - 1)
    return np.concatenate([[1.0], np.array(WEIGHTS) @ powers])


def main() -> None:
    """Write the file."""
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    toeplitz: Any = importlib.import_module("jax_privacy.matrix_factorization.toeplitz")
    rows: list[dict[str, Any]] = []
    for rounds, bands in BANDED:
        column = toeplitz.optimize_banded_toeplitz(rounds, bands, max_optimizer_steps=2000)
        noise = float(np.mean(toeplitz.per_query_error(strategy_coef=column, n=rounds)))
        length = float(toeplitz.sensitivity_squared(column, rounds))
        rows.append({"rounds": rounds, "bands": bands, "error": math.sqrt(noise * length)})
    for rounds, apart in APART:
        squared = toeplitz.minsep_sensitivity_squared(
            column_of(rounds), min_sep=apart, max_participations=-(-rounds // apart), n=rounds
        )
        rows.append({"rounds": rounds, "apart": apart, "moved": math.sqrt(float(squared))})
    PATH.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
