"""The audit as a test of ourselves: twenty deliberate bugs, and how each is seen.

Each bug is put into a game that is fair to it: a worst-case pair of data sets, a claim by the real
accountant from the plan as the bug leaves it. The lower bound must exceed the claim with the bug,
and must not without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.privacy_filter import RenyiFilter
from fedsim.clipping import FlatClip, PerLayerClip
from fedsim.data.selection import pool
from fedsim.estimators import FixedDenominator
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix, banded_matrix
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.sampling import CyclicSampling, PoissonSampling, Relation
from fedsim.server_optimizer import ServerOptimizer
from fedsim.tensors import Tensors
from tests.privacy.mechanism_audit.bounds import LowerBound, bound_from_scores
from tests.privacy.mechanism_audit.worst_graph import Pooling, listeners_share
from tests.privacy.planted_bugs import bugs
from tests.privacy.planted_bugs.game import (
    ChoosingExecutor,
    Game,
    PlantedExecutor,
    RunGame,
    along_target,
)
from tests.privacy.planted_bugs.two_runs import two_runs

DELTA = 1e-3
_NORM, _LAYERS = 1.0, 9
_MANY = 25  # times the trials, for a bug that no more than doubles what a user adds
_AT_ONCE = 400  # the same for trials that share their rounds
_EVEN = PerLayerClip.evenly(_NORM, [f"layer{i}" for i in range(_LAYERS)])
Plan = Callable[..., RoundPlan]


@dataclass(frozen=True)
class Mutant:
    """A bug with the game that shows it.

    Attributes:
        bug: what went wrong, in words.
        right: the game of the true code.
        wrong: the same with the bug in.
        contract: a check by name that must pass on the true plan and fail on the other, for what
            no statistic of a few releases can show; None where the audit's bound is enough.
        effort: multiplies the trials.
    """

    bug: str
    right: Game
    wrong: Game
    contract: Callable[[RoundPlan], bool] | None = None
    effort: int = 1


def make_plan(
    *,
    kind: Plan = RoundPlan,
    num_units: int = 2,
    total_weight: float = 8.0,
    q: float = 1.0,
    rounds: int = 1,
    target: float = 2.0,
    units_per_user: int = 1,
    relation: Relation = Relation.ADD_OR_REMOVE,
    **changes: Any,  # noqa: ANN401
) -> RoundPlan:
    """Return a plan of `num_units` units whose rounds are calibrated to ε = `target`."""
    law = PoissonSampling(q)
    noise = calibrate_noise_multiplier(
        sampling=law,
        units_per_user=units_per_user,
        rounds=rounds,
        epsilon=target,
        delta=DELTA,
        relation=relation,
    )
    fields: dict[str, Any] = {
        "strategy": "uls",
        "unit": "user",
        "pool": np.arange(num_units, dtype=np.int64),
        "sampling": law,
        "task": TaskSpec(name="planted"),
        "clip": FlatClip(l2_clip_norm=_NORM),
        "estimator": FixedDenominator(q, total_weight),
        "noise_multiplier": noise,
        "units_per_user": units_per_user,
        "relation": relation,
        "optimizer": ServerOptimizer("sgd", 1.0),
        "entropy": "seeded",
    }
    return kind(**{**fields, **changes})


def vector(target: float, other: float) -> Tensors:
    """Return an update: entry 0 is the target's direction, entry 1 everybody else's."""
    return {"weight": torch.tensor([target, other], dtype=torch.float64)}


def game(plan: RoundPlan, update: Tensors, other: Tensors, **changes: Any) -> Game:  # noqa: ANN401
    """Return a game whose target is unit 0 few."""
    parts = {
        name: changes.pop(name) for name in ("targets", "rounds", "statistic") if name in changes
    }
    targets = parts.pop("targets", frozenset({0}))
    updates = {key: update if key in targets else other for key in plan.pool.tolist()}
    return Game(PlantedExecutor(plan, updates, **changes), targets, **parts)


LARGE, ASIDE = vector(10.0, 0.0), vector(0.0, 10.0)


def _by_plan(
    bug: str,
    right: dict[str, Any],
    wrong: dict[str, Any],
    effort: int = 1,
    **of_game: Any,  # noqa: ANN401
) -> Mutant:
    """Return a mutant that differs in the plan only."""
    update, other = of_game.pop("update", LARGE), of_game.pop("other", ASIDE)
    return Mutant(
        bug,
        game(make_plan(**right), update, other, **of_game),
        game(make_plan(**{**right, **wrong}), update, other, **of_game),
        effort=effort,
    )


def _by_executor(
    bug: str, wrong: dict[str, Any], update: Tensors = LARGE, target: int = 0, effort: int = 1
) -> Mutant:
    """Return a mutant that differs in how the clients' half is computed; unit `target` is it."""
    plan, one = make_plan(num_units=3), frozenset({target})
    right = game(plan, update, ASIDE, targets=one)
    return Mutant(bug, right, game(plan, update, ASIDE, targets=one, **wrong), effort=effort)


def apart(seen: Sequence[Tensors]) -> float:
    """Return how far apart two rounds' releases are along the target."""
    return abs(along_target(seen[:1]) - along_target(seen[1:]))


def no_stream_is_used_twice(plan: RoundPlan) -> bool:
    """Check that coins and noise of a few rounds begin with different bits, all of them."""
    coins = plan.draws.coins(np.arange(4, dtype=np.uint64))
    begins = [tuple(coins.of_units(round).tolist()) for round in range(4)]
    sources = [plan.draws.noise(round).chunk("weight", 0) for round in range(4)]
    begins += [tuple(source.random(4).tolist()) for source in sources]
    return len(set(begins)) == len(begins)


def mutants() -> list[Mutant]:
    """Return all of them."""
    layers = {name: torch.tensor([10.0, 0.0], dtype=torch.float64) for name in _layer_names()}
    aside = {name: value.flip(0) for name, value in layers.items()}
    few = {"num_units": 2, "q": 0.5, "total_weight": 20.0}
    twice = {"num_units": 2, "q": 0.5, "rounds": 2}
    shared = game(make_plan(kind=bugs.SharedStream), LARGE, ASIDE)
    many = make_plan(num_units=9, q=0.5)
    as_counted = make_plan(num_units=9, q=0.5, units_per_user=8)
    eight: dict[str, Any] = {"targets": frozenset(range(8))}
    crowd: dict[str, Any] = {"update": LARGE, "other": vector(-10.0, 0.0)}
    tenth = {"num_units": 21, "q": 0.1, "total_weight": 20.0, "target": 1.0}
    return [
        _by_plan("no clip", {}, {"clip": bugs.Unclipped(l2_clip_norm=_NORM)}),
        _by_plan(
            "clip after averaging",
            {},
            {
                "clip": bugs.Unclipped(l2_clip_norm=_NORM),
                "estimator": bugs.ClipsTheMean(1.0, 8.0, l2_clip_norm=_NORM),
            },
            update=vector(1e3, 0.0),
        ),
        _by_plan(
            "noise for the mean, added to the sum", {}, {"estimator": bugs.Undivided(1.0, 8.0)}
        ),
        _by_plan(
            "denominator is the realised cohort",
            few,
            {"estimator": bugs.RealisedDenominator(0.5, 20.0)},
            effort=2,
        ),
        _by_plan(
            "noise reused between rounds",
            twice,
            {"kind": bugs.SameNoise},
            rounds=2,
            statistic=apart,
        ),
        Mutant(
            "seed shared by sampling and noise",
            game(make_plan(), LARGE, ASIDE),
            shared,
            no_stream_is_used_twice,
        ),
        _by_executor("user counted in two shards", {"cut": bugs.overlapping}, target=1, effort=16),
        _by_executor(
            "weight above 1",
            {"unit": bugs.AnyWeight, "weights": {0: 4.0}, "accumulator": bugs.TakesAnyWeight},
        ),
        _by_plan(
            "per-layer bounds not combined",
            {"clip": _EVEN},
            {"clip": bugs.LargestLayer(l2_clip_norms=_EVEN.l2_clip_norms)},
            effort=2,
            update=layers,
            other=aside,
        ),
        _by_executor("NaN passes the clip", {"accumulator": bugs.PassesNaN}, vector(math.nan, 0.0)),
        _by_plan(
            "accounted as Poisson, drawn with a fixed size",
            tenth,
            {"sampling": bugs.FixedSizeDrawn(0.1)},
            _MANY,
            **crowd,
        ),
        Mutant(
            "a user's examples counted as one",
            game(as_counted, LARGE, ASIDE, **eight),
            game(many, LARGE, ASIDE, **eight),
        ),
        Mutant(
            "choices for users addressed by their places in the data",
            _in_front(ChoosingExecutor),
            _in_front(bugs.ByPlace),
        ),
        Mutant(
            "a shared budget over runs chosen after looking, composed as if fixed in advance",
            two_runs(make_plan(), RenyiFilter, DELTA),
            two_runs(make_plan(), bugs.AddsLosses, DELTA),
        ),
        *_of_runs(),
        Mutant(
            "bounding looks at the author alone",
            _of_listener(pool),
            _of_listener(bugs.by_author_alone),
        ),
    ]


def _of_runs() -> list[Mutant]:
    """Return the bugs of mechanisms that are priced for a whole run."""
    differences = NoiseMatrix("blt", 4, 1, (1.0,), (1.0,))  # each round takes the last one's back
    long = NoiseMatrix("blt", 16, 1, (0.5,), (0.9,))
    apart, four = banded_matrix(8, 4), CyclicSampling(8, 4, 1.0)
    return [
        _of_run(
            "noise reused without its matrix",
            (CyclicSampling(4, 1, 1.0), differences),
            (CyclicSampling(4, 1, 1.0), bugs.Unpaid(**asdict(differences))),
        ),
        _of_run(
            "the sensitivity of one column, not of all that a unit takes part in",
            (CyclicSampling(16, 1, 1.0), long),
            (CyclicSampling(16, 1, 1.0), bugs.OneColumn(**asdict(long))),
        ),
        _of_run(
            "a participation too early",
            (four, apart),
            (bugs.TooEarly(8, 4, 1.0), apart),
            drawn_as=CyclicSampling(8, 2, 1.0),
        ),
        _of_run(
            "the price of T rounds with T + 1 run",
            (CyclicSampling(2, 1, 1.0), INDEPENDENT),
            (bugs.OneRoundMore(2, 1, 1.0), INDEPENDENT),
        ),
    ]


def _of_run(
    bug: str,
    right: tuple[CyclicSampling, NoiseMatrix],
    wrong: tuple[CyclicSampling, NoiseMatrix],
    drawn_as: CyclicSampling | None = None,
) -> Mutant:
    """Return a mutant of whole runs; `drawn_as` is how the wrong one draws, if not as it says."""

    def played(sampling: CyclicSampling, matrix: NoiseMatrix, law: CyclicSampling) -> Game:
        plan = make_plan(
            sampling=sampling,
            estimator=FixedDenominator(sampling.probability, 8.0 / sampling.probability),
            noise_multiplier=calibrate_noise_multiplier(
                sampling=PoissonSampling(sampling.rate),
                rounds=sampling.events,
                epsilon=2.0,
                delta=DELTA,
            ),
            matrix=matrix,
        )
        return RunGame(PlantedExecutor(plan, {}), frozenset(), sampling.rounds, law=law)

    seen = played(*wrong, drawn_as or wrong[0])
    return Mutant(bug, played(*right, right[0]), seen, effort=_AT_ONCE)


def _in_front(kind: type[ChoosingExecutor]) -> Game:
    """Return a game whose target stands in front of 20 users.

    What the others bring is planted so that with the target there all of it points one way.
    """
    plan = make_plan(num_units=21)
    signs = kind(plan, {}).signs(plan.pool)
    updates = {
        key: vector(10.0 * sign, 0.0) for key, sign in zip(plan.pool.tolist(), signs, strict=True)
    }
    return Game(kind(plan, updates), frozenset({0}))


def _of_listener(pooling: Pooling) -> Game:
    """Return a game whose target wrote nothing: its units are those that a pool has of its texts.

    The pool is all of the game. The target's texts are taken away and not blanked, as a fixed
    graph has it; with a fixed denominator releases are the same.
    """
    kept, of_listener = listeners_share(2, pooling)
    plan = make_plan(
        pool=kept,
        unit="example",
        q=0.5,
        units_per_user=2,
        target=1.0,
        relation=Relation.FIXED_GRAPH,
    )
    return game(plan, LARGE, ASIDE, targets=frozenset(of_listener.tolist()))


def _layer_names() -> list[str]:
    return [f"{layer}.weight" for layer in _EVEN.l2_clip_norms]


@dataclass(frozen=True)
class Verdict:
    """How a bug was seen, and what is said of the true code in the same game.

    Attributes:
        bug: in words.
        caught_by: "audit", "contract …", or "nothing".
        false_alarm: whether the same evidence speaks against the true code.
        claimed_right: ε that the true plan claims, at DELTA.
        right: what its releases show.
        claimed_wrong: ε that the plan with the bug claims, at DELTA.
        wrong: what its releases show.
    """

    bug: str
    caught_by: str
    false_alarm: bool
    claimed_right: float
    right: LowerBound
    claimed_wrong: float
    wrong: LowerBound


def judge(mutant: Mutant, trials: int = 500, confidence: float = 0.95, seed: int = 0) -> Verdict:
    """Play both games and say whether the bug is seen, and the true code let pass."""
    right = _claim_and_bound(mutant.right, mutant.effort * trials, confidence, seed)
    wrong = _claim_and_bound(mutant.wrong, mutant.effort * trials, confidence, seed)
    caught, alarm = wrong[1].epsilon > wrong[0], right[1].epsilon > right[0]
    caught_by = "audit" if caught else "nothing"
    if mutant.contract is not None:
        alarm = alarm or not mutant.contract(mutant.right.executor.plan)
        if not mutant.contract(mutant.wrong.executor.plan):
            caught_by = f"contract {mutant.contract.__name__}"
    return Verdict(mutant.bug, caught_by, alarm, *right, *wrong)


def _claim_and_bound(
    played: Game, trials: int, confidence: float, seed: int
) -> tuple[float, LowerBound]:
    plan = played.executor.plan
    claimed = epsilon(plan.cost, played.rounds, DELTA, relation=plan.relation)
    scores_in, scores_out = played.play(trials, seed)
    bound = bound_from_scores(
        scores_in, scores_out, delta=DELTA, confidence=confidence, chosen_on=0.25, seed=seed
    )
    return claimed, bound
