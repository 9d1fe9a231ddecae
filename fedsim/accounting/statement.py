"""The privacy statement: ε with δ, unit, relation, sampler and accountant, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from fedsim.accounting.rounding import round_up

Noise = Literal["secure", "seeded"]

_SOURCE: Mapping[Noise | None, str] = {
    "secure": "Coins and noise are secret.",
    "seeded": "Coins and noise are seeded: this holds for nobody who knows the seed.",
    None: "It takes coins and noise that stay secret.",
}


def noise_sentence(noise: Noise | None) -> str:
    """Return what follows a promise: whether its coins and noise are secret; None: not yet drawn.

    Examples:
        >>> noise_sentence("seeded")
        'Coins and noise are seeded: this holds for nobody who knows the seed.'
    """
    return _SOURCE[noise]


def noise_terms(noise: Noise) -> str:
    """Return the same as part of a caption."""
    return "secret noise" if noise == "secure" else "seeded noise: void for who knows the seed"


def privacy_sentence(
    *,
    unit: str,
    relation: str,
    epsilon: float,
    delta: float | None,
    noise_multiplier: float,
    sampling_probability: float,
    sampler: str,
    rounds: int,
    units_per_user: int,
    accountant: str,
    guaranteed: bool = True,
    noise: Noise | None = None,
) -> str:
    """Return the sentence with ε, rounded up, and all it rests on: δ, unit, relation and so on.

    What is not `guaranteed`, because the sampler accounted is not the one that drew, is said
    to be hypothetical.
    """
    if delta is not None and noise_multiplier > 0.0 and not math.isfinite(epsilon):
        return (
            f"No privacy guarantee: the {accountant} accountant certifies no finite ε at δ = "
            f"{delta:g} for {rounds} rounds of {sampler} with noise multiplier "
            f"{noise_multiplier:g}; a larger δ may have one."
        )
    if delta is None or not math.isfinite(epsilon):
        return f"No privacy guarantee: the releases of {rounds} rounds have no finite ε."
    share = f" (at most {units_per_user} a {unit})" if units_per_user > 1 else ""
    has = (
        f"Every {unit} has"
        if guaranteed
        else (f"Hypothetical, not a guarantee for this run: every {unit} would have")
    )
    return (
        f"{has} (ε = {round_up(epsilon, 4):g}, δ = {delta:g})-differential privacy "
        f"under the {relation} relation, for {rounds} rounds of {sampler}{share} with "
        f"probability {sampling_probability:g} and noise multiplier {noise_multiplier:g}, "
        f"by the {accountant} accountant. {noise_sentence(noise)}"
    )


def finite_or_none(value: float) -> float | None:
    """Return the value, or None in place of what JSON cannot write."""
    return value if math.isfinite(value) else None
