"""Benchmark ε and noise calibration of example-level sampling against dp_accounting."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import dp_accounting
from dp_accounting import dp_event

from fedsim.accounting.accountants import certified, epsilon
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.events import RoundCost
from fedsim.accounting.methods import pld
from fedsim.experiments.benchmarks.timing import Row, interleaved, row_of
from fedsim.sampling import PoissonSampling, binomial_probabilities

_ORDER = ("fedsim", "fedsim", "dp_accounting", "fedsim", "fedsim")
_DELTA = 1e-6

# Charles et al. 2024: the slowest point of Figure 1, and the calibration of App. B.1.2
_FIGURE_1_PROBABILITY, _FIGURE_1_NOISE, _FIGURE_1_ROUNDS = 0.01, 1.0, 2000
_USERS, _GROUP_SIZE, _BATCH_SIZE, _ROUNDS = 1024, 32, 64, 1000
_LARGE_GROUP_SIZE, _LARGE_EPSILON = 183, 4.0


def run() -> list[Row]:
    """Return the times of every case, by fedsim and, if it supports the case, by dp_accounting."""
    return [
        *_epsilon("epsilon/els-32", units_per_user=32, repetitions=1),
        *_epsilon("epsilon/uls", units_per_user=1, repetitions=2),
        *_calibration("calibration/els-32", _GROUP_SIZE, 1.0, repetitions=1),
        *_calibration("calibration/els-183", _LARGE_GROUP_SIZE, _LARGE_EPSILON, repetitions=0),
        *_calibration("calibration/uls", 1, 1.0, repetitions=2),
    ]


def _epsilon(case: str, units_per_user: int, repetitions: int) -> list[Row]:
    """Return the times of ε of one setting, by fedsim and by dp_accounting with its defaults."""
    probability, noise, rounds = _FIGURE_1_PROBABILITY, _FIGURE_1_NOISE, _FIGURE_1_ROUNDS
    details = {
        "sampling_probability": probability,
        "noise_multiplier": noise,
        "units_per_user": units_per_user,
        "rounds": rounds,
        "delta": _DELTA,
    }
    cost = RoundCost(PoissonSampling(probability), noise, units_per_user)

    def ours() -> float:
        return epsilon(cost, rounds, _DELTA)

    def reference() -> float:
        accountant = dp_accounting.pld.PLDAccountant()
        event = _event(noise, units_per_user, probability)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, rounds))
        return float(accountant.get_epsilon(_DELTA))

    return _rows(case, ours, reference, repetitions, details)


def _calibration(case: str, units_per_user: int, target: float, repetitions: int) -> list[Row]:
    """Return the times of a noise calibration to ε = `target`."""
    probability = _BATCH_SIZE / (_USERS * units_per_user)
    details = {
        "sampling_probability": probability,
        "units_per_user": units_per_user,
        "rounds": _ROUNDS,
        "epsilon": target,
        "delta": _DELTA,
    }

    def ours() -> float:
        return calibrate_noise_multiplier(
            sampling=PoissonSampling(probability),
            units_per_user=units_per_user,
            rounds=_ROUNDS,
            epsilon=target,
            delta=_DELTA,
        )

    def reference() -> float:
        """Calibrate as in Charles et al. 2024, App. B.1.2, with dp_accounting's defaults."""

        def event(noise: float) -> dp_accounting.DpEvent:
            return dp_accounting.SelfComposedDpEvent(
                _event(noise, units_per_user, probability), _ROUNDS
            )

        return float(
            dp_accounting.calibrate_dp_mechanism(
                dp_accounting.pld.PLDAccountant, event, target, _DELTA
            )
        )

    return _rows(case, ours, reference, repetitions, details)


def _rows(
    case: str,
    ours: Callable[[], float],
    reference: Callable[[], float],
    repetitions: int,
    details: dict[str, Any],
) -> list[Row]:
    """Measure fedsim, and between its repetitions the reference `repetitions` times.

    The rows also record the computed number.
    """
    results: dict[str, float] = {}

    def task(name: str, compute: Callable[[], float]) -> Callable[[], None]:
        def measured() -> None:
            results[name] = compute()

        return measured

    def fresh() -> float:
        with _empty_caches():
            return ours()

    tasks = {"fedsim": task("fedsim", fresh), "dp_accounting": task("dp_accounting", reference)}
    order = _ORDER * repetitions or ("fedsim",) * len(_ORDER)
    seconds = interleaved(tasks, order)
    slowest = seconds.get("dp_accounting")
    return [
        row_of(
            "accounting",
            case,
            engine,
            taken,
            ratio=None if slowest is None else median(slowest) / median(taken),
            details={**details, "result": results[engine]},
        )
        for engine, taken in seconds.items()
    ]


@contextmanager
def _empty_caches() -> Iterator[None]:
    """Clear the caches of this process, and use an empty cache folder."""
    certified.cache_clear()
    pld.composed.cache_clear()
    pld.single_round.cache_clear()
    before = os.environ.get("FEDSIM_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDSIM_CACHE"] = folder
        try:
            yield
        finally:
            del os.environ["FEDSIM_CACHE"]
            if before is not None:
                os.environ["FEDSIM_CACHE"] = before


def _event(noise: float, units_per_user: int, probability: float) -> dp_accounting.DpEvent:
    """Return the event of one round in dp_accounting's terms."""
    if units_per_user == 1:
        return dp_accounting.PoissonSampledDpEvent(
            probability, dp_accounting.GaussianDpEvent(noise)
        )
    return dp_event.MixtureOfGaussiansDpEvent(
        noise, list(range(units_per_user + 1)), binomial_probabilities(units_per_user, probability)
    )
