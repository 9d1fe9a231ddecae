"""Dirty numbers beside the sum: replies, losses, the adaptive clip, the filter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedsim.clients.engines.loop import loop
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clip_policy import AdaptiveClip
from fedsim.clipping import Clip, FlatClip
from fedsim.data.selection import CohortRule
from fedsim.estimators import WeightedSum
from fedsim.evaluation.metrics import evaluate
from fedsim.evaluation.starting_losses import losses_for
from fedsim.execution import Keys
from fedsim.experiments.benchmarks.grids.null_client import null_spec
from fedsim.grids.executor import GridExecutor
from fedsim.grids.records import ShardReply
from fedsim.seeding import Draws, noise_key
from fedsim.strategies.asi_liu.filter import Filtered
from fedsim.strategies.asi_liu.sampling import AboveThreshold
from fedsim.tensors import Tensors, all_finite, l2_norm
from tests.robustness.dirty.engines import World, poison
from tests.robustness.dirty.sums import Judged, random_clip
from tests.unit.evaluation.test_starting_losses import Started
from tests.unit.grids.flower_apps import answering

Check = Callable[[World, np.random.Generator, Judged], None]


def replies(world: World, rng: np.random.Generator, judged: Judged) -> None:
    """A reply whose sum is not finite fails its round; nothing of it is released."""
    parameters = world.materials.model.initial_parameters()
    value = float(rng.choice([math.nan, math.inf, -math.inf]))
    total = WeightedSum.zero(parameters)
    next(iter(total.values.values())).view(-1)[0] = value
    content = ShardReply(0, 0, replace(total, num_units=3, weight=1.0)).to_content()
    judged.count("replies", 1)
    judged.where = f"a reply of {value}"
    executor = GridExecutor(answering(content), null_spec())
    try:
        executor.clipped_sum(parameters, np.arange(3), FlatClip(l2_clip_norm=1.0), 0)
    except RuntimeError as error:
        judged.expect("shard 0 has" in str(error), f"raised {error}")
    else:
        judged.lose("was taken")


def adaptive(world: World, rng: np.random.Generator, judged: Judged) -> None:
    """The count is within its units and the next clip is a positive number."""
    parameters, said = poison(world, rng)
    task, clip = AveragedGradient(world.materials, group_size=3), random_clip(parameters, rng)
    keys = np.arange(world.materials.split.num_users)
    total = loop(task, parameters, keys, clip, 0)
    policy = AdaptiveClip(0.5, 0.2, 1.0, 5.0)
    scale, round = float(rng.choice([1e-9, 1.0, 1e9])), int(rng.integers(100))
    after = policy.after(round, scale, total, noise_key(0, "clip", round))
    judged.count("adaptive clips", 1)
    judged.where = said
    judged.expect(1e-9 <= after.scale <= 1.0001e9, f"the clip's scale is {after.scale}")
    judged.expect(math.isfinite(after.released_share or 0.0), f"share {after.released_share}")


@dataclass
class _Direct:
    """The executor that the filter stands around, without a grid."""

    task: AveragedGradient

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        return loop(self.task, parameters, cohort, clip, round)


def concentration(world: World, rng: np.random.Generator, judged: Judged) -> None:
    """Who is not finite is a zero among the distances, and the filtered sum stays within bounds."""
    parameters, said = poison(world, rng)
    task = AveragedGradient(world.materials, group_size=3)
    keys = np.arange(world.materials.split.num_users)
    clip, radius = FlatClip(l2_clip_norm=1.0), float(rng.choice([1e-3, 0.3, 2.0]))
    filtered = Filtered(_Direct(task), AboveThreshold(1e3, -1e9), radius, Draws(0, "seeded"))
    total = filtered.clipped_sum(parameters, keys, clip, 0)
    length = l2_norm(total.values)
    judged.count("concentration filters", len(keys))
    judged.where = f"{said}, radius {radius}"
    judged.expect(0.0 <= total.weight <= len(keys), f"weight {total.weight}")
    judged.expect(length <= total.weight * (1 + 1e-6), f"norm {length} over {total.weight}")
    judged.expect(total.num_units == len(keys), f"{total.num_units} units")


def losses(world: World, rng: np.random.Generator, judged: Judged) -> None:
    """Scores of broken parameters are told as they are, and rules by perplexity still choose."""
    parameters = world.materials.model.initial_parameters()
    name = str(rng.choice(list(parameters)))
    value = float(rng.choice([math.nan, math.inf, 1e20, 3e38]))
    parameters[name].view(-1)[int(rng.integers(parameters[name].numel()))] = value
    store, split = world.materials.store, world.materials.split
    judged.count("evaluations", 1)
    judged.where = f"{name} has a {value}"
    found = evaluate(world.materials.model, parameters, store, split.held_out_examples)
    judged.expect(found.tokens > 0, "no tokens")
    judged.expect(not all_finite(parameters) or not found.loss < 0.0, f"loss {found.loss}")
    broken = replace(world.materials, model=Started(world.materials.model, parameters))  # type: ignore[arg-type]
    rules: tuple[CohortRule, ...] = ("highest-perplexity", "lowest-perplexity")
    for rule in rules:
        kept = losses_for(broken, rule)
        fine = kept is not None and not np.isnan(kept).any() and bool((kept >= 0.0).all())
        judged.expect(fine, f"{rule}: {kept}")
        unit = AveragedGradient(broken, group_size=2, selection=rule).unit(1, 0)
        judged.expect(0 < len(unit.lengths) <= 2, f"{rule}: {len(unit.lengths)} examples")


CHECKS: tuple[Check, ...] = (replies, adaptive, concentration, losses)


def trial_of_paths(world: World, rng: np.random.Generator, judged: Judged) -> None:
    """Make one of the checks."""
    check = CHECKS[int(rng.integers(len(CHECKS)))]
    try:
        check(world, rng, judged)
    except Exception as error:  # whatever it is, it is a loss
        judged.where = check.__name__
        judged.lose(f"raised {type(error).__name__}: {error}")
