"""The noise of a strategy, and a comparison of two strategies by their noise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Noise:
    """Noise in a round's gradient estimate (Charles et al. 2024, §3).

    Attributes:
        strategy: "uls" or "els".
        group_size: G of the strategy.
        size: M, expected users per round (uls), or expected examples per round (els).
        noise_multiplier: σ.
        l2_clip_norm: L.
        stddev: noise standard deviation per coordinate of the estimate, in the unit of L (eqs 5
            and 6).
    """

    strategy: str
    group_size: int
    size: float
    noise_multiplier: float
    l2_clip_norm: float
    stddev: float

    @property
    def variance(self) -> float:
        """`stddev` squared."""
        return self.stddev**2


@dataclass(frozen=True)
class Recommendation:
    """The recommended strategy, and the reason.

    Attributes:
        strategy: strategy with less noise; els if they are equal.
        reason: reason in one sentence.
        norm_ratio: L_ELS σ_ELS / (L_ULS σ_ULS), the left side of condition (7).
        gradients_per_user: B/M, its right side; it is the paper's G_ULS if all users have G_ULS
            examples.
        variance_ratio: var(els) / var(uls).
    """

    strategy: str
    reason: str
    norm_ratio: float
    gradients_per_user: float
    variance_ratio: float


def condition_7(els: Noise, uls: Noise) -> bool:
    """Return whether L_ELS σ_ELS / (L_ULS σ_ULS) <= B/M, so that ELS has at most ULS's noise."""
    each = els.size / uls.size
    return els.l2_clip_norm * els.noise_multiplier <= (
        each * uls.l2_clip_norm * uls.noise_multiplier
    )


def recommend(els: Noise, uls: Noise) -> Recommendation:
    """Return the strategy with the smaller noise at equal compute."""
    variances = els.variance / uls.variance
    per_user = els.size / uls.size
    holds = condition_7(els, uls)
    norms = els.l2_clip_norm * els.noise_multiplier / (uls.l2_clip_norm * uls.noise_multiplier)
    less, more = (els, uls) if variances <= 1.0 else (uls, els)
    reason = (
        f"{less.strategy}: at the same ε, δ and compute its noise has standard deviation "
        f"{less.stddev:.4g} per coordinate; the noise of {more.strategy} has {more.stddev:.4g}"
    )
    if holds == (variances <= 1.0):  # (7) does not apply to clipped denominators
        sign = "≤" if holds else ">"
        reason += (
            "; condition (7) of Charles et al. 2024, with clips L and noise multipliers σ: "
            f"L_ELS σ_ELS / (L_ULS σ_ULS) = {norms:.4g} {sign} {per_user:.4g} gradients per user"
        )
    return Recommendation(less.strategy, f"{reason}.", norms, per_user, variances)
