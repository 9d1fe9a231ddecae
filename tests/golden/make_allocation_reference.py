"""Compute published upper bounds of balanced sampling, into `allocation_reference.json`.

    pip install random-allocation==1.0.5 pandas     # in an environment of its own: it pins numpy
    PYTHONPATH=. python -m tests.golden.make_allocation_reference

The package is by the authors of Feldman and Shenfeld 2025 (arXiv:2502.08202). Its best bound is the
least of theirs: analytic, by Rényi divergences ("direct"), recursive, by decomposition, and without
amplification. k passes of m rounds are its k epochs of one allocation to m steps. It takes a
quarter of an hour.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).with_name("allocation_reference.json")
NUM_SETTINGS = 100
ORDERS = [*range(2, 61)]


def setting(number: int) -> dict[str, Any]:
    """Draw k 1…20 passes of m 2…1000 rounds, σ 0.5…6, δ 1e-9…1e-4, all log-uniform."""
    generator = np.random.Generator(np.random.Philox([2025, number]))
    lows, highs = np.log([1.0, 2.0, 0.5, 1e-9]), np.log([20.0, 1000.0, 6.0, 1e-4])
    k, m, noise, delta = np.exp(generator.uniform(lows, highs)).tolist()
    return {
        "participations": round(k),
        "pass_rounds": round(m),
        "noise_multiplier": noise,
        "delta": delta,
    }


def bound(drawn: dict[str, Any]) -> float:
    """Return the package's best upper bound on ε."""
    definitions: Any = importlib.import_module("random_allocation.comparisons.definitions")
    combined: Any = importlib.import_module("random_allocation.random_allocation_scheme.combined")
    params = definitions.PrivacyParams(
        sigma=drawn["noise_multiplier"],
        num_steps=drawn["pass_rounds"],
        num_selected=1,
        num_epochs=drawn["participations"],
        epsilon=None,
        delta=drawn["delta"],
    )
    config = definitions.SchemeConfig(allocation_direct_alpha_orders=ORDERS)
    with contextlib.redirect_stdout(io.StringIO()):
        return float(combined.allocation_epsilon_combined(params, config))


def main() -> None:
    """Write the file, and take it up where it was cut off."""
    rows = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else []
    for number in range(len(rows), NUM_SETTINGS):
        drawn = setting(number)
        rows.append({**drawn, "upper_bound": bound(drawn)})
        lines = ",\n".join(map(json.dumps, rows))
        PATH.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
