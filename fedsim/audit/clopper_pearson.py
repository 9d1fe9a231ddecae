"""A lower bound on ε from a test's hits and false alarms, counted on independent trials."""

from __future__ import annotations

import math

from scipy import special

from fedsim.errors import ConfigError


def epsilon_lower_bound(  # noqa: PLR0917 (two counts of two, and two levels)
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Return an ε that the mechanism's true ε at `delta` exceeds, with the given confidence.

    Any test of "was the target in?" on the output of an (ε, δ)-private mechanism has
    TPR <= e^ε·FPR + δ (Kairouz et al. 2015). Both rates are replaced by exact one-sided binomial
    limits (Clopper and Pearson 1934), each at half of the error, so that both hold together.

    Args:
        true_positives: trials with the target in, that the test called "in".
        positives: all trials with the target in, >= 1.
        false_positives: trials without the target that the test called "in".
        negatives: all trials without the target, >= 1.
        delta: of the guarantee that is audited, in [0, 1).
        confidence: of the bound, in (0, 1).

    The test, its threshold included, must have been fixed before these trials were looked at
    (`thresholds` does that), and trials must be independent draws of the mechanism.

    | case | result |
    |---|---|
    | the limits show nothing | 0 |
    | no false alarm in n trials | finite: the rate's upper limit is about 3.7/n at 95 % |

    Raises:
        ConfigError: counts, `delta` or `confidence` out of range.
    """
    _check_counts("true_positives", true_positives, positives)
    _check_counts("false_positives", false_positives, negatives)
    if not 0.0 <= delta < 1.0:
        raise ConfigError(f"delta = {delta!r}: give a number in [0, 1)")
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence = {confidence!r}: give a number in (0, 1)")
    error = (1.0 - confidence) / 2.0
    hits = lower_limit(true_positives, positives, error) - delta
    alarms = upper_limit(false_positives, negatives, error)
    return max(0.0, math.log(hits / alarms)) if hits > 0.0 else 0.0


def lower_limit(count: int, trials: int, error: float) -> float:
    """Return the Clopper-Pearson lower limit of a rate, wrong with probability <= `error`."""
    return float(special.betaincinv(count, trials - count + 1, error)) if count > 0 else 0.0


def upper_limit(count: int, trials: int, error: float) -> float:
    """Return the Clopper-Pearson upper limit of a rate, wrong with probability <= `error`."""
    return float(special.betainccinv(count + 1, trials - count, error)) if count < trials else 1.0


def _check_counts(name: str, count: int, trials: int) -> None:
    if not 0 <= count <= trials or trials < 1:
        raise ConfigError(
            f"{name} = {count!r} of {trials!r}: give 0 <= count <= trials, trials >= 1"
        )
