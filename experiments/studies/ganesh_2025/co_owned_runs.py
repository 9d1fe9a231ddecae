"""Runs on co-owned texts, the kept examples of each bounding rule, and an attack on listeners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsim.accounting.accountants import epsilon as epsilon_of
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.events import RoundCost
from fedsim.attacks.measuring import RESAMPLES
from fedsim.attacks.roc import Scores, auroc, bootstrap
from fedsim.attacks.user_inference import finite_scores
from fedsim.config import Config, ModelConfig, parse_config
from fedsim.data.bounding import Bounding, Order, most_examples
from fedsim.data.selection import pool
from fedsim.data.store import Indices
from fedsim.evaluation.metrics import evaluate
from fedsim.evaluation.score_cache import ScoreCache
from fedsim.experiments.studies.common.runs import trained_once
from fedsim.experiments.studies.ganesh_2025.scenes import World
from fedsim.language_model import LanguageModel
from fedsim.materials import load_model
from fedsim.report.schema import Privacy
from fedsim.runner.folder import RunFolder
from fedsim.sampling import PoissonSampling, Relation
from fedsim.seeding import stream

DELTA = 1e-4  # for about nine hundred owners
CLIP = 0.5
NAIVE = "naïve"
RULES: dict[str, tuple[Bounding, Order]] = {
    "greedy, least demand": ("greedy", "least-demand"),
    "greedy, random": ("greedy", "random"),
    "greedy, longest": ("greedy", "longest"),
    "greedy, shortest": ("greedy", "shortest"),
    "random": ("random", "random"),
    "linear program": ("linear-program", "random"),
}
BOUNDED = ("greedy, least demand", "random")  # rules of the trained runs
UNPROTECTED = "no clip, no noise"


class Scale(NamedTuple):
    """Size of the study.

    Attributes:
        scenes: number of scenes, from the first; None for all.
        held_out: share of held-out owners.
        pretraining_steps: steps of the starting model; None for the built-in model's default.
        sizes: values of K, the maximum kept examples of an owner, for counting.
        trained: values of K of the trained runs.
        epsilons: ε for owners, and for speakers in the naïve runs.
        rates: candidate learning rates.
        rounds: rounds of a run with clip.
        batch_size: expected examples per round of a run with clip.
        unprotected: rounds and expected examples of the run without clip and noise.
        seeds: seeds of split, coins and noise.
    """

    scenes: int | None
    held_out: float
    pretraining_steps: int | None
    sizes: tuple[int, ...]
    trained: tuple[int, ...]
    epsilons: tuple[float, ...]
    rates: tuple[float, ...]
    rounds: int
    batch_size: int
    unprotected: tuple[int, int]
    seeds: tuple[int, ...]

    def model(self, trainable: str = "ln_") -> ModelConfig:
        """Return the starting model; by default only its norms' gains and offsets are trained."""
        return ModelConfig(trainable=trainable, pretraining_steps=self.pretraining_steps)


FULL = Scale(
    scenes=None,
    held_out=0.15,
    pretraining_steps=None,
    sizes=(1, 2, 4, 8, 16, 32, 64),
    trained=(1, 4, 16, 64),
    epsilons=(4.0, 16.0),
    rates=(0.1, 0.2, 0.4),
    rounds=30,
    batch_size=32,
    unprotected=(120, 128),
    seeds=(1, 2),
)
QUICK = Scale(60, 0.2, 10, (1, 4), (4,), (16.0,), (0.4,), 2, 8, (2, 16), (1,))


class Kept(NamedTuple):
    """The kept examples of a rule at one K, and the noise for them.

    Attributes:
        rule: a key of `RULES`, or `NAIVE`.
        group_size: K.
        examples: number of kept examples.
        share: share of the maximum for any rule, the linear program's optimum, rounded down.
        listener: maximum number of kept examples that one listener co-owns.
        noise: map from ε to the noise multiplier; empty if the pool is smaller than a batch.
    """

    rule: str
    group_size: int
    examples: int
    share: float
    listener: int
    noise: dict[float, float]


def kept(world: World, rule: str, group_size: int) -> Indices:
    """Return the pool of a run: examples of the co-owned store."""
    if rule == NAIVE:
        naive = world.naive
        order: Order = "random"
        found = pool(naive.split, naive.store, group_size=group_size, rule=order, seed=world.seed)
        examples: Indices = world.train[found.examples]
        return examples
    bounding, order = RULES[rule]
    materials = world.co_owned
    return pool(
        materials.split,
        materials.store,
        group_size=group_size,
        rule=order,
        seed=world.seed,
        bounding=bounding,
    ).examples


def count(world: World, scale: Scale) -> Iterator[Kept]:
    """Yield the kept examples of every rule at every K, and of the naïve run."""
    for size in scale.sizes:
        graph = world.co_owned.store.graph
        most = int(most_examples(graph, world.train, size) + 1e-6) if graph is not None else 0
        for rule in (*RULES, NAIVE):
            examples = kept(world, rule, size)
            number = len(examples)
            noise = {
                epsilon: calibrate_noise_multiplier(
                    sampling=PoissonSampling(scale.batch_size / number),
                    units_per_user=size,
                    rounds=scale.rounds,
                    epsilon=epsilon,
                    delta=DELTA,
                    relation=Relation.ADD_OR_REMOVE if rule == NAIVE else Relation.FIXED_GRAPH,
                )
                for epsilon in scale.epsilons
                if number >= scale.batch_size
            }
            yield Kept(rule, size, number, number / most, world.most(examples), noise)


@dataclass(frozen=True)
class Case:
    """A run without its seed and learning rate: rule, K (None: all texts), ε (None: no noise)."""

    rule: str
    group_size: int | None
    epsilon: float | None

    def config(self, world: World, scale: Scale, rate: float) -> Config:
        """Return the run's config."""
        alone = self.rule in (NAIVE, UNPROTECTED)
        rounds = scale.unprotected[0] if self.group_size is None else scale.rounds
        raw: dict[str, Any] = {
            "seed": world.seed,
            "data": world.data[not alone],
            "model": scale.model().model_dump(exclude_none=True),
            "privacy": {"delta": DELTA, "noise": "seeded"},
            "server": {"optimizer": "sgd", "learning_rate": rate},
            "training": {"evaluate_every": rounds, "checkpoint_every": rounds},
        }
        if self.group_size is None:
            size = scale.unprotected[1]
            raw["strategy"] = {"name": "non-private", "rounds": rounds, "batch_size": size}
            raw["model"] = scale.model("all").model_dump(exclude_none=True)
            raw["server"]["optimizer"] = "adam"
            return parse_config(raw)
        raw["strategy"] = {
            "name": "els",
            "rounds": rounds,
            "batch_size": scale.batch_size,
            "group_size": self.group_size,
            "clip": {"kind": "flat", "l2_clip_norm": CLIP, "normalise": True},
        }
        if not alone:
            bounding, order = RULES[self.rule]
            raw["strategy"] |= {"bounding": bounding, "selection": order}
        else:
            number = len(kept(world, self.rule, self.group_size))
            raw["privacy"]["declared_num_examples"] = number
        noise = {"noise_multiplier": 0.0} if self.epsilon is None else {"epsilon": self.epsilon}
        raw["privacy"] |= noise
        return parse_config(raw)


def cases(scale: Scale) -> list[tuple[Case, float]]:
    """Return every run of a seed, with its learning rate."""
    found = [
        (Case(rule, size, epsilon), rate)
        for rule in (*BOUNDED, NAIVE)
        for epsilon in scale.epsilons
        for size in scale.trained
        for rate in scale.rates
    ]
    bold = (*scale.rates, 4.0 * max(scale.rates))  # without noise, larger rates work
    found += [(Case(NAIVE, max(scale.trained), None), rate) for rate in bold]
    return [*found, (Case(UNPROTECTED, None, None), 0.003)]


class Outcome(NamedTuple):
    """A finished run.

    Attributes:
        run: folder of the run.
        privacy: privacy section of the report.
        seconds: seconds of all rounds.
        pool: number of examples in the pool.
        listener: maximum number of examples in the pool that one listener co-owns.
        repriced: ε of the run's noise for an owner of `listener` examples; None without noise.
        loss: loss of the scored texts, in nats per token.
    """

    run: RunFolder
    privacy: Privacy
    seconds: float
    pool: int
    listener: int
    repriced: float | None
    loss: float


def finished(world: World, case: Case, rate: float, scale: Scale, folder: Path) -> Outcome:
    """Train the case, unless `folder` has its finished run, and score the model."""
    config = case.config(world, scale, rate)
    name = f"{case.rule}-{case.group_size}-{case.epsilon}-{rate}-{world.seed}"
    run = RunFolder(folder / name.replace(", ", "-").replace(" ", "-"))
    report = trained_once(config, run.path)
    examples = world.train
    if case.group_size is not None:
        examples = kept(world, case.rule, case.group_size)
    most, model = world.most(examples), _trained(world, run)
    return Outcome(
        run,
        report.privacy,
        report.cost.seconds,
        len(examples),
        most,
        _repriced(report.privacy, most),
        loss(world, model),
    )


def loss(world: World, model: LanguageModel) -> float:
    """Return the loss of the scored texts, in nats per token."""
    everything = np.arange(world.scored.num_examples)
    return evaluate(model, model.initial_parameters(), world.scored, everything).loss


def _trained(world: World, run: RunFolder) -> LanguageModel:
    config = run.read_config()
    return load_model(run.served(config), world.seed, config.data.sequence_length)


def log_ratios(world: World, run: RunFolder, examples: Indices) -> Scores:
    """Return log-likelihoods of examples of the co-owned store, minus those before training.

    Returns:
        (examples of the store,) float64, NaN for examples that were not requested.
    """
    store, start = world.co_owned.store, world.co_owned.model
    cache = ScoreCache(store, run.path.parent / "likelihoods")
    before = finite_scores(cache, start, start.initial_parameters(), examples)
    model = _trained(world, run)
    after = finite_scores(cache, model, model.initial_parameters(), examples)
    ratios = np.full(store.num_examples, np.nan)
    ratios[examples] = before.nats - after.nats
    return ratios


def _repriced(privacy: Privacy, owned: int) -> float | None:
    if privacy.epsilon is None or privacy.delta is None:
        return None
    rate, noise = privacy.sampling_probability or 1.0, privacy.noise_multiplier or 0.0
    cost = RoundCost(PoissonSampling(rate), noise, max(owned, 1))
    return epsilon_of(cost, privacy.rounds, privacy.delta, None, Relation.FIXED_GRAPH)


class Attack(NamedTuple):
    """The attack on the listeners of one split.

    Attributes:
        auroc: AUROC of the mean log ratio of a listener's texts.
        low: lower end of the middle 95 % of a bootstrap over the listeners.
        high: upper end of the same.
        gap: the members' mean log ratio minus the others', in nats per text.
    """

    auroc: float
    low: float
    high: float
    gap: float


def attack(world: World, ratios: Scores) -> Attack:
    """Attack the listeners of a split with the log ratios of a run of this or another split."""
    inside, outside = (
        np.array([ratios[texts].mean() for texts in side]) for side in world.listeners()
    )
    generator = stream(world.seed, "attack", 1)
    (interval,) = bootstrap([auroc], inside, outside, generator, RESAMPLES)
    gap = float(inside.mean() - outside.mean())
    return Attack(auroc(inside, outside), interval.low, interval.high, gap)


class Row(NamedTuple):
    """A case at its best learning rate, over the seeds.

    Attributes:
        case: the case.
        rate: the tried learning rate with the least mean loss.
        outcomes: outcome of each seed.
        attacks: attack of each outcome on its own split.
        controls: attack of each outcome on another seed's split; empty with one seed.
    """

    case: Case
    rate: float
    outcomes: Sequence[Outcome]
    attacks: Sequence[Attack]
    controls: Sequence[Attack]

    @property
    def loss(self) -> float:
        """Mean loss over the seeds, in nats per token."""
        return float(np.mean([outcome.loss for outcome in self.outcomes]))


def attacked(worlds: Sequence[World], case: Case, tried: Mapping[float, Sequence[Outcome]]) -> Row:
    """Choose the learning rate with the least mean loss, and attack its runs.

    Args:
        worlds: world of each seed.
        case: case of the runs.
        tried: map from learning rate to the outcomes, in the order of the worlds.
    """
    rate, outcomes = min(tried.items(), key=lambda item: np.mean([o.loss for o in item[1]]))
    known = np.unique(np.concatenate([e for w in worlds for side in w.listeners() for e in side]))
    own, others = [], []
    for place, (world, outcome) in enumerate(zip(worlds, outcomes, strict=True)):
        ratios = log_ratios(world, outcome.run, known)
        own.append(attack(world, ratios))
        others += [attack(other, ratios) for other in (*worlds[:place], *worlds[place + 1 :])]
    return Row(case, rate, outcomes, own, others)
