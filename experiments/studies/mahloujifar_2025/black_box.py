"""Mahloujifar et al. 2025: lower bounds from the guesses of one run, by f-DP and by (ε, δ)-DP.

Runs are real runs with text canaries, as in `fedsim audit CONFIG --black-box`. Each has one claim
and is observed only through losses of the final model. The strength of scores is the difference of
their means with and without the canary, over their standard deviation. The mechanism's strength is
for a canary with a gradient direction that no other user has.

Games are simulated audits: canaries of a Gaussian mechanism with the claimed ε, canaries that were
never included, and the scores of the first real run with newly drawn coins. The study counts how
often f-DP gives at least as large a bound, and how often a bound is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.events import RoundCost
from fedsim.audit.black_box import SHARES, Attack, attack
from fedsim.audit.f_dp import Family, bound_in_family, own_family
from fedsim.audit.one_run import bound_from_canaries
from fedsim.config import Config, load_config
from fedsim.experiments.studies.common.output import Result, Table, legend, panels, steps, study
from fedsim.planner.variants import changed
from fedsim.report.style import colour
from fedsim.sampling import PoissonSampling, Relation

CONFIG = files("fedsim.experiments") / "configs" / "audit.toml"
CANARIES, CONFIDENCE = 400, 0.95
Changes = Mapping[str, Mapping[str, Any]]
"""Map from section to overriding keys; None removes a key."""
ELS: Changes = {
    "strategy": {"name": "els", "cohort_size": None, "batch_size": 2703, "group_size": 4},
    "privacy": {"declared_num_examples": 2703},
}
RUNS: dict[str, Changes] = {
    "uls, embeddings": {},
    "uls, embeddings, half of the users a round": {"strategy": {"cohort_size": 449}},
    "els, embeddings": ELS,
    "uls, LoRA of rank 4": {"model": {"trainable": "all", "lora_rank": 4}},
    "uls, all parameters": {"model": {"trainable": "all"}},
}
QUICK: Changes = {"model": {"pretraining_steps": 0}, "strategy": {"rounds": 2}}
GAMES, NULLS = 100, 200
TERMS = (
    "unit: user; relation: add-or-remove-one user; Poisson sampling; claims by the accountant that "
    f"the strategy takes, at δ = 0.0001; {CANARIES} canaries, lower bounds with {CONFIDENCE:.0%} "
    "confidence"
)

Row = dict[str, Any]


@study(
    "black-box-audit",
    "What the losses of a final model prove about its ε: f-DP against (ε, δ)-DP",
    __doc__,
)
def run(quick: bool) -> Result:
    """Audit real runs and games."""
    canaries = 60 if quick else CANARIES
    names = [*RUNS][:1] if quick else [*RUNS]
    seeds = (0,) if quick else (0, 1)
    rows, done = [], []
    for name, seed in steps([(name, seed) for name in names for seed in seeds], "runs"):
        config = configured(RUNS[name], *([QUICK] if quick else []))
        done.append(attack(config, canaries, seed))
        rows.append({"run": name, "coin_seed": seed, **bounded(done[-1])})
    games = counts(done[0], canaries, *((4, 8) if quick else (GAMES, NULLS)))
    reached = [row for row in rows if row["f_dp"] >= 1.0]
    return Result(
        settings=(
            f"Privacy: {TERMS}.",
            "Runs: tiny-gpt on the built-in text; draws are seeded, and every ε here is simulated.",
            f"Guesses are on the {' or '.join(f'{share:.0%}' for share in SHARES)} of canaries "
            "with the most extreme scores, on both sides or only above. The confidence accounts "
            "for all these choices.",
        ),
        notes=(
            f"f-DP proves an ε of at least 1 in {len(reached)} of {len(rows)} runs.",
            *(f"{game['game']}: {game['count']} of {game['of']}." for game in games),
        ),
        table=Table.of(
            rows,
            {
                "run": ("run", "s"),
                "coins": ("coin_seed", "d"),
                "claimed ε": ("claimed", ".2f"),
                "proved by f-DP": ("f_dp", ".2f"),
                "by (ε, δ)-DP": ("steinke", ".2f"),
                "strength": ("strength", ".2f"),
                "the mechanism's": ("mechanism", ".2f"),
            },
        ),
        records=rows,
        figure=draw(rows),
        more={"comparison.csv": games},
    )


def bounded(done: Attack) -> Row:
    """Return both bounds of a run, and the strength of its scores."""
    plan, rounds = done.plan, done.config.strategy.rounds
    return {
        "claimed": done.config.privacy.epsilon,
        "f_dp": done.bound("f-dp")[0].epsilon,
        "steinke": done.bound("steinke")[0].epsilon,
        "strength": strength(done.scores, done.included),
        "mechanism": linear(plan.cost, rounds),
    }


def configured(*changes: Changes) -> Config:
    """Return the config of the audits with overriding keys."""
    with as_file(CONFIG) as path:
        config = load_config(path)
    for sections in changes:
        config = changed(config, **sections)
    return config


def strength(scores: npt.NDArray[np.float64], included: npt.NDArray[np.bool_]) -> float:
    """Return the difference of mean scores of canaries in and out, over the standard deviation."""
    inside, outside = scores[included], scores[~included]
    spread = np.sqrt(0.5 * (inside.var() + outside.var()))
    return float((inside.mean() - outside.mean()) / spread)


def linear(cost: RoundCost, rounds: int) -> float:
    """Return the strength of the sum of all releases, in a direction that only one user has."""
    rate, units = cost.sampling.probability, cost.units_per_user
    spread = rounds * (cost.noise_multiplier**2 + 0.5 * units * rate * (1.0 - rate))
    return float(rounds * units * rate / np.sqrt(spread))


def counts(first: Attack, canaries: int, games: int, nulls: int) -> list[Row]:
    """Return how often f-DP gives at least as large a bound, and how often a bound is wrong."""
    target = first.config.privacy.epsilon or 0.0
    noise = calibrate_noise_multiplier(
        sampling=PoissonSampling(1.0), rounds=1, epsilon=target, delta=first.delta
    )
    cost = RoundCost(PoissonSampling(1.0), noise, 1)
    family = own_family(cost, 1, Relation.ADD_OR_REMOVE, first.delta)
    rng = np.random.default_rng(0)

    def both(moved: float, count: int) -> npt.NDArray[np.float64]:
        """Return (count, 2): bounds by f-DP and by (ε, δ)-DP for canaries of strength `moved`."""
        found = []
        for _ in steps(range(count), "games"):
            included = rng.random(canaries) < 0.5
            scores = moved * included + rng.normal(size=canaries)
            found.append(two_bounds(scores, included, family, first.delta))
        return np.array(found)

    true, never = both(1.0 / noise, games), both(0.0, nulls)
    wrong = both(1.0 / noise, nulls) > target
    thrown = [
        two_bounds(first.scores, rng.random(canaries) < 0.5, family, first.delta)
        for _ in range(nulls)
    ]
    shown = np.array(thrown) > 0.0
    median = np.median(true, axis=0)
    at_claim = f"canaries of a Gaussian mechanism with ε = {target:g}"
    medians = f"medians {median[0]:.2f} and {median[1]:.2f}"
    rows: list[tuple[str, int, int]] = [
        (
            f"f-DP proves at least as large an ε, {at_claim} ({medians})",
            (true[:, 0] >= true[:, 1]).sum(),
            games,
        ),
    ]
    for place, method in enumerate(("f-DP", "(ε, δ)-DP")):
        rows += [
            (f"{method} refutes the true claim, {at_claim}", wrong[:, place].sum(), nulls),
            (
                f"{method} proves ε > 0 from canaries that were never included",
                (never[:, place] > 0).sum(),
                nulls,
            ),
            (f"{method} proves ε > 0 from newly drawn coins", shown[:, place].sum(), nulls),
        ]
    return [{"game": game, "count": int(count), "of": of} for game, count, of in rows]


def two_bounds(
    scores: npt.NDArray[np.float64],
    included: npt.NDArray[np.bool_],
    family: Family,
    delta: float,
) -> tuple[float, float]:
    """Return the bounds by f-DP and by (ε, δ)-DP."""
    by_curve, _ = bound_in_family(
        scores, included, family, delta=delta, confidence=CONFIDENCE, shares=SHARES
    )
    plain = bound_from_canaries(scores, included, delta=delta, confidence=CONFIDENCE, shares=SHARES)
    return by_curve.epsilon, plain.epsilon


def draw(rows: list[Row]) -> Figure:
    """Draw both bounds of each run beside its claim."""
    figure, (axes,) = panels(
        (9.0, 1.8 + 0.45 * len(rows)),
        "What one training run proves about its ε",
        TERMS,
        [["lower bounds on ε"]],
        x="ε",
        y="",
    )
    places = range(len(rows))
    axes.set_yticks(places, [f"{row['run']} ({row['coin_seed']})" for row in rows], fontsize=7)
    for index, (key, name) in enumerate({"f_dp": "f-DP", "steinke": "(ε, δ)-DP"}.items()):
        axes.plot([row[key] for row in rows], places, "o", color=colour(index), label=name)
    axes.plot(
        [row["claimed"] for row in rows], places, "|", ms=14, color=colour(2), label="claimed"
    )
    axes.invert_yaxis()
    axes.set_xlim(left=-0.1)
    legend(figure, axes)
    return figure
