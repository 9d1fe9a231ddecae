"""Compute ε of random mixtures of Gaussians by dp_accounting alone, into `mixture_reference.json`.

    python -m tests.golden.make_mixture_reference

takes about an hour and takes up where it was cut off. The interval is dp_accounting's default
of 1e-4, or 1e-5 where going from 1e-3 to 1e-4 still changed ε by more than 3 %. Settings whose
PLD at 1e-3 has more than 30,000 points (every twentieth: 100,000) are drawn again: at 1e-4 they
would take minutes and gigabytes each.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism
from scipy import stats

PATH = Path(__file__).with_name("mixture_reference.json")
NUM_SETTINGS = 220
MANY_POINTS, VERY_MANY_POINTS, EVERY = 30_000, 100_000, 20


def setting(generator: np.random.Generator) -> dict[str, Any]:
    """Draw K 1…64, p 0.001…0.1, σ 0.7…8, T 1…5000, δ 1e-9…1e-4, all log-uniform."""
    return {
        "units_per_user": round(_log_uniform(generator, 1.0, 64.0)),
        "sampling_probability": _log_uniform(generator, 1e-3, 0.1),
        "noise_multiplier": _log_uniform(generator, 0.7, 8.0),
        "rounds": round(_log_uniform(generator, 1.0, 5000.0)),
        "delta": _log_uniform(generator, 1e-9, 1e-4),
    }


def row(number: int) -> dict[str, Any]:
    """Return the setting of this number with the interval used and ε."""
    generator = np.random.Generator(np.random.Philox([2024, number]))
    most = VERY_MANY_POINTS if number % EVERY == 0 else MANY_POINTS
    while True:
        drawn = setting(generator)
        points = _epsilon(drawn, 1e-2)[1]
        if points <= most // 10:
            interval, epsilon = _reference(drawn)
            return {**drawn, "interval": interval, "epsilon": epsilon}


def _reference(setting: dict[str, Any]) -> tuple[float, float]:
    coarse, fine = _epsilon(setting, 1e-3)[0], _epsilon(setting, 1e-4)[0]
    if coarse <= 1.03 * fine:
        return 1e-4, fine
    return 1e-5, _epsilon(setting, 1e-5)[0]


def _epsilon(setting: dict[str, Any], interval: float) -> tuple[float, int]:
    trials = setting["units_per_user"]
    pmf = stats.binom.pmf(np.arange(trials + 1), trials, setting["sampling_probability"])
    pld = from_mixture_gaussian_mechanism(
        setting["noise_multiplier"],
        list(range(trials + 1)),
        list(pmf / pmf.sum()),
        value_discretization_interval=interval,
    )
    composed = pld.self_compose(setting["rounds"])
    return float(composed.get_epsilon_for_delta(setting["delta"])), pld._pmf_remove.size


def _log_uniform(generator: np.random.Generator, low: float, high: float) -> float:
    return float(f"{np.exp(generator.uniform(np.log(low), np.log(high))):.4g}")


def main() -> None:
    """Compute what is missing and save after each setting."""
    rows: list[dict[str, Any]] = json.loads(PATH.read_text()) if PATH.exists() else []
    for number in range(len(rows), NUM_SETTINGS):
        started = time.monotonic()
        rows.append(row(number))
        PATH.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
        seconds = time.monotonic() - started
        sys.stderr.write(f"{number + 1}/{NUM_SETTINGS} {rows[-1]} {seconds:.1f} s\n")


if __name__ == "__main__":
    main()
