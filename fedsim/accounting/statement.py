"""The privacy statement: what is promised to whom, and everything the promise rests on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.accounting.rounding import round_up


@dataclass(frozen=True)
class PrivacyStatement:
    """The first block of a report.

    Attributes:
        unit: who is protected: "user".
        relation: the neighbouring relation, such as "add-or-remove-one user".
        epsilon: the accountant's ε for what was released; inf where nothing is promised.
        delta: the δ it holds at; None where nothing is promised.
        noise_multiplier: noise standard deviation over the sensitivity to one unit.
        sampling_probability: of one coin.
        sampler: what the coins are flipped on, such as "Poisson sampling of users".
        rounds: releases paid for.
        units_per_user: units (coins) one user owns at most.
        clip: the clip, as JSON values.
        estimator: the estimator, as JSON values.
        noise_stddev: standard deviation of the noise on the released estimate.
        accountant: its name.
        discretisation: its grid of privacy losses, in nats, or None.
        noise: "seeded" or "secure" (or "none").
        assumptions: sentences that must be true for the promise to hold.
    """

    unit: str
    relation: str
    epsilon: float
    delta: float | None
    noise_multiplier: float
    sampling_probability: float
    sampler: str
    rounds: int
    units_per_user: int
    clip: Mapping[str, Any]
    estimator: Mapping[str, Any]
    noise_stddev: float
    accountant: str
    discretisation: float | None
    noise: str
    assumptions: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; JSON has no infinity, so an infinite ε is null."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **fields,
            "epsilon": finite_or_none(self.epsilon),
            "clip": dict(self.clip),
            "estimator": dict(self.estimator),
            "assumptions": list(self.assumptions),
        }

    def sentence(self) -> str:
        """Return the promise in one sentence; see `privacy_sentence`."""
        return privacy_sentence(
            unit=self.unit,
            relation=self.relation,
            epsilon=self.epsilon,
            delta=self.delta,
            noise_multiplier=self.noise_multiplier,
            sampling_probability=self.sampling_probability,
            sampler=self.sampler,
            rounds=self.rounds,
            units_per_user=self.units_per_user,
            accountant=self.accountant,
        )


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
) -> str:
    """Say ε never without δ, unit, relation, sampler and accountant; ε is rounded up."""
    if delta is None or not math.isfinite(epsilon):
        return f"No privacy guarantee: the releases of {rounds} rounds have no finite ε."
    share = f" (at most {units_per_user} a {unit})" if units_per_user > 1 else ""
    return (
        f"Every {unit} has (ε = {round_up(epsilon, 4):g}, δ = {delta:g})-differential privacy "
        f"under the {relation} relation, for {rounds} rounds of {sampler}{share} with "
        f"probability {sampling_probability:g} and noise multiplier {noise_multiplier:g}, "
        f"by the {accountant} accountant."
    )


def finite_or_none(value: float) -> float | None:
    """Return the value, or None in place of what JSON cannot write."""
    return value if math.isfinite(value) else None
