"""What must hold of a clipped sum whatever the updates were, and updates made to break it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from fedsim.clipping import Clip, FlatClip, NoClip, NormalisedClip, PerLayerClip, layers_of
from fedsim.estimators import ClippedDenominator, FixedDenominator, WeightedSum
from fedsim.execution import Accumulator, Update
from fedsim.tensors import Tensors, all_finite, l2_norm, scale

_MARGIN = 3e-6  # of the bound: float32 arithmetic of the engines
_CLOSE = 1e-4  # the directions of gradients, in other batches
_LAYOUT = {"a.weight": (3, 4), "a.bias": (4,), "b.weight": (5,)}
_SPECIAL = (
    *(float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-45, -1e-40, 1.2e-38, 1e-20),
    *(1.0, -1.0, 1e10, 1e15, -1e19, 1e30, 1e38, -3.4e38),
)


@dataclass
class Judged:
    """What was tried and what was wrong.

    Attributes:
        where: the trial that is being judged, said with whatever is lost in it.
        close: of all that was added, what the same updates in other batches may differ by.
    """

    where: str = ""
    close: float = _CLOSE
    counts: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)

    def count(self, name: str, inputs: int) -> None:
        """Count inputs under a name."""
        self.counts[name] += inputs

    def lose(self, what: str) -> None:
        """Take down what is wrong here."""
        self.losses.append(f"{what} [{self.where}]")

    def expect(self, holds: bool, what: str) -> None:
        """Take down `what` unless it holds."""
        if not holds:
            self.lose(what)


def random_clip(layout: Tensors, rng: np.random.Generator) -> Clip:
    """Return a clip of any kind."""
    norm = float(rng.choice([1e-6, 0.05, 1.0, 1e3, 1e20]))
    clips: list[FlatClip | PerLayerClip] = [
        FlatClip(l2_clip_norm=norm),
        PerLayerClip.evenly(norm, layers_of(layout)),
    ]
    inner = clips[int(rng.integers(2))]
    kind = rng.random()
    return NoClip() if kind < 0.1 else NormalisedClip(clip=inner) if kind < 0.4 else inner


def minus(left: WeightedSum, *others: WeightedSum) -> dict[str, torch.Tensor]:
    """Return the difference of the sums."""
    return {
        name: value - sum(other.values[name] for other in others)
        for name, value in left.values.items()
    }


def check_sum(
    total: WeightedSum, weights: Sequence[float], non_finite: int, clip: Clip, judged: Judged
) -> None:
    """Judge what is counted, and that the sum is finite and within the bound."""
    judged.expect(total.num_units == len(weights), f"num_units = {total.num_units}")
    judged.expect(math.isclose(total.weight, math.fsum(weights)), f"weight = {total.weight}")
    judged.expect(
        total.num_non_finite == non_finite,
        f"num_non_finite = {total.num_non_finite}, not {non_finite}",
    )
    judged.expect(math.isfinite(total.loss), f"loss = {total.loss}")
    judged.expect(
        non_finite <= total.num_unclipped <= len(weights), f"num_unclipped = {total.num_unclipped}"
    )
    length, most = l2_norm(total.values), clip.bound * math.fsum(weights)
    judged.expect(math.isfinite(length), f"the sum's norm is {length}")
    judged.expect(
        clip.kind == "none" or length <= most * (1 + _MARGIN), f"norm {length} over {most}"
    )


def check_same(
    whole: WeightedSum,
    without: WeightedSum,
    alone: WeightedSum,
    expected: WeightedSum,
    weight_out: float,
    clip: Clip,
    updates: Sequence[Tensors],
    judged: Judged,
) -> None:
    """Judge that nobody moves the others: whole = without + alone = what the loop gives.

    Args:
        whole: of a cohort.
        without: of those who stay.
        alone: of those who go.
        expected: of the cohort, by the loop.
        weight_out: of those who go.
        clip: of all.
        updates: of the cohort, before the clip.
        judged: takes down.
    """
    norms = [norm for norm in map(l2_norm, updates) if math.isfinite(norm)]
    lengths = [clip_length(norm, clip) for norm in norms]
    allowed = judged.close * math.fsum(lengths)
    apart = l2_norm(minus(whole, without, alone))
    judged.expect(apart <= allowed, f"others moved by {apart}, over {allowed}")
    apart = l2_norm(minus(whole, expected))
    judged.expect(apart <= allowed, f"the loop gives another sum, by {apart}, over {allowed}")
    judged.expect(
        whole.num_unclipped == expected.num_unclipped,
        f"num_unclipped = {whole.num_unclipped}, the loop's is {expected.num_unclipped}",
    )
    judged.expect(
        math.isclose(whole.loss, expected.loss, rel_tol=1e-3, abs_tol=1e-3),
        f"loss = {whole.loss}, the loop's is {expected.loss}",
    )
    if clip.kind != "none":
        moved, most = l2_norm(minus(whole, without)), clip.bound * weight_out
        allowed = most + _MARGIN * math.fsum(lengths)
        judged.expect(moved <= allowed, f"moved by {moved}, over {most}")


def clip_length(norm: float, clip: Clip) -> float:
    """Return the most that an update of this norm adds: its norm, or the bound."""
    if clip.kind == "none":
        return norm
    return (
        min(norm / clip.norm, 1.0) * clip.bound
        if isinstance(clip, NormalisedClip)
        else min(norm, clip.bound)
    )


def check_estimates(
    whole: WeightedSum, without: WeightedSum, num_out: int, clip: Clip, judged: Judged
) -> None:
    """Judge both estimators' sensitivity, once for each unit that goes."""
    if clip.kind == "none":
        return
    for estimator in (FixedDenominator(0.3, 11.0), ClippedDenominator(0.3, 6.0)):
        left, right = (scale(s.values, estimator.factor(s)) for s in (whole, without))
        moved = l2_norm({name: left[name] - right[name] for name in left})
        most = num_out * estimator.sensitivity(clip.bound)
        slack = _MARGIN * (most + max(l2_norm(left), l2_norm(right)))
        judged.expect(moved <= most + slack, f"{estimator.kind} moved by {moved}, over {most}")


def random_update(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Return tensors of ordinary, special and mixed values, in a random type."""
    dtype = (torch.float32, torch.float32, torch.float64, torch.bfloat16)[int(rng.integers(4))]
    update = {}
    for name, shape in _LAYOUT.items():
        values = rng.standard_normal(shape) * float(rng.choice([0.0, 1e-38, 1e-3, 1.0, 1e15, 1e37]))
        how = rng.random()
        if how < 0.3:
            values = np.full(shape, float(rng.choice(_SPECIAL)))
        elif how < 0.6:
            values.flat[int(rng.integers(values.size))] = float(rng.choice(_SPECIAL))
        if dtype == torch.float64 and rng.random() < 0.1:
            values.flat[0] = float(rng.choice([1e153, 1e200, 1.7e308]))
        update[name] = torch.from_numpy(values).to(dtype)
    return update


def trial_of_sums(rng: np.random.Generator, judged: Judged) -> None:
    """Judge the Accumulator on made-up updates."""
    updates = [random_update(rng) for _ in range(int(rng.integers(1, 8)))]
    weights = rng.choice([0.0, 0.3, 1.0], len(updates)).tolist()
    out = rng.random(len(updates)) < 0.4
    clip = random_clip(updates[0], rng)
    judged.where = f"accumulator, {clip!r}, {updates}, weights {weights}, out {out}"
    judged.count("accumulator", len(updates))
    judged.close = _CLOSE
    layout = {name: torch.zeros(shape) for name, shape in _LAYOUT.items()}
    sums = {}
    for name, inside in (("whole", out | ~out), ("without", ~out), ("alone", out)):
        accumulator, own, dropped = Accumulator(layout, clip), [], 0
        for update, weight, included in zip(updates, weights, inside, strict=True):
            if included:
                accumulator.add(Update(update, float(rng.choice(_SPECIAL)), 1), weight)
                own.append(weight)
                squares = [l2_norm({k: v}) * l2_norm({k: v}) for k, v in update.items()]
                clips = clip.kind != "none"
                dropped += not (all_finite(update) and (math.isfinite(sum(squares)) or not clips))
        sums[name] = accumulator.total()
        check_sum(sums[name], own, dropped, clip, judged)
    whole, without, alone = sums["whole"], sums["without"], sums["alone"]
    weight = math.fsum(w for w, gone in zip(weights, out, strict=True) if gone)
    same_loss = WeightedSum(whole.values, loss=whole.loss, num_unclipped=whole.num_unclipped)
    check_same(whole, without, alone, same_loss, weight, clip, updates, judged)
    check_estimates(whole, without, int(out.sum()), clip, judged)
