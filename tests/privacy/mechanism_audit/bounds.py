"""Lower bounds on ε from many independent trials: from counts, and from scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import special


def epsilon_lower_bound(
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

    The test, its threshold included, must be fixed before these trials are looked at, and trials
    must be independent draws of the mechanism. No false alarm in n trials gives a finite bound: the
    rate's upper limit is about 3.7/n at 95 %.
    """
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


Scores = npt.NDArray[np.float64]
_CANDIDATES = 400  # thresholds tried on the part that chooses
_CAUTION = 1e-2  # how often the limits of one threshold's rates are wrong, where it is chosen


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on ε with all that it means.

    Attributes:
        epsilon: the bound, >= 0; the true ε at `delta` is at least this, with `confidence`.
        delta: of the guarantee that is audited.
        confidence: that the bound holds.
        says_in: "above": a score at or above the threshold is called "in"; "below": a score at or
            below it is called "out", and positives are trials without the target.
        threshold: chosen on scores that are not counted below.
        true_positives: of `positives`, right decisions.
        positives: trials in which the tested-for state held.
        false_positives: of `negatives`, wrong decisions.
        negatives: trials in which it did not.
    """

    epsilon: float
    delta: float
    confidence: float
    says_in: Literal["above", "below"]
    threshold: float
    true_positives: int
    positives: int
    false_positives: int
    negatives: int


def bound_from_scores(
    scores_in: Scores,
    scores_out: Scores,
    *,
    delta: float,
    confidence: float = 0.95,
    chosen_on: float = 0.5,
    seed: int = 0,
) -> LowerBound:
    """Return the bound of the test "score beyond a threshold", the threshold chosen elsewhere.

    Args:
        scores_in: (n,) of independent trials with the target in; large means "in". NaN is read
            as +inf: a release that is not finite gives somebody away.
        scores_out: (m,) of independent trials without.
        delta: of the guarantee, in [0, 1).
        confidence: of the bound, in (0, 1).
        chosen_on: the share of the scores that the threshold is chosen on, in (0, 1).
        seed: of the split.
    """
    rng = np.random.default_rng(seed)
    choose_in, count_in = _split(scores_in, chosen_on, rng)
    choose_out, count_out = _split(scores_out, chosen_on, rng)
    side: Literal["above", "below"]
    above = _best(choose_in, choose_out, delta)
    below = _best(-choose_out, -choose_in, delta)
    if above[0] >= below[0]:
        counts = _counts(count_in, count_out, above[1])
        side, threshold = "above", above[1]
    else:
        counts = _counts(-count_out, -count_in, below[1])
        side, threshold = "below", -below[1]
    found = epsilon_lower_bound(*counts, delta, confidence)
    return LowerBound(found, delta, confidence, side, threshold, *counts)


def _split(scores: Scores, share: float, rng: np.random.Generator) -> tuple[Scores, Scores]:
    mixed = rng.permutation(np.nan_to_num(scores, nan=np.inf, posinf=np.inf, neginf=-np.inf))
    cut = min(max(round(share * len(mixed)), 2), len(mixed) - 2)
    return mixed[:cut], mixed[cut:]


def _best(positives: Scores, negatives: Scores, delta: float) -> tuple[float, float]:
    """Return the threshold that can be trusted to do best on other scores, after its log ratio.

    Rates are taken at limits that are hardly ever wrong: the best of many thresholds at plain
    rates would be one in the tail that a handful of scores flattered.
    """
    ordered_in, ordered_out = np.sort(positives), np.sort(negatives)
    candidates = _candidates(ordered_in, ordered_out)
    hits = len(ordered_in) - np.searchsorted(ordered_in, candidates)
    alarms = len(ordered_out) - np.searchsorted(ordered_out, candidates)
    low = special.betaincinv(np.maximum(hits, 1e-9), len(ordered_in) - hits + 1.0, _CAUTION)
    high = special.betainccinv(alarms + 1.0, np.maximum(len(ordered_out) - alarms, 1e-9), _CAUTION)
    gain = np.log(np.maximum(low - delta, 1e-300) / high)
    best = int(np.argmax(gain))
    return float(gain[best]), float(candidates[best])


def _candidates(ordered_in: Scores, ordered_out: Scores) -> Scores:
    """Return thresholds that are dense, in counts of false alarms, where alarms are few."""
    found = []
    for ordered in (ordered_in, ordered_out):
        ranks = np.unique(np.geomspace(1, len(ordered), _CANDIDATES // 2).astype(np.int64))
        found.append(ordered[len(ordered) - ranks])
    beyond = np.nextafter(ordered_out[-1:], np.inf)  # no alarm at all on this part
    return np.unique(np.concatenate([*found, beyond]))


def _counts(positives: Scores, negatives: Scores, threshold: float) -> tuple[int, int, int, int]:
    return (
        int((positives >= threshold).sum()),
        len(positives),
        int((negatives >= threshold).sum()),
        len(negatives),
    )
