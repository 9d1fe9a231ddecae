"""Charles et al. 2024, App. I.1: strategies that choose group and cohort size, on real text.

The comparison uses speakers of Shakespeare's plays, or users of a file (`--data`). A budget of B
gradients per round is split into group size G and expected cohort M, with G·M = B and powers of
two. Sub-optimality is the held-out loss, in nats per token, minus that of the best split of the
budget. The best is the minimum of several measured losses, so it is slightly biased by chance.
Users with fewer than G examples use all of them, so large groups compute fewer than B gradients.

Estimate-and-Double doubles G or M, whichever leaves less noise: L(2G)/L(G) against σ(2M)/(2σ(M)),
see `fedsim/planner/doubling.py`. `as printed` compares with σ(2M)/σ(M). L(G) is estimated from
some users, as in `fedsim plan`; σ(M) is calibrated to the ε of the run. All strategies start at
the smallest G and M; `suboptimality.csv` has their sub-optimality at every ε and budget.

The paper finds Estimate-and-Double as good as the oracle at most budgets, on Stack Overflow and
CC-News (350 M parameters, ε from 1 to 64).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.experiments.studies.charles_2024.doubling_analysis import suboptimality
from fedsim.experiments.studies.charles_2024.doubling_picture import Compared, draw, means
from fedsim.experiments.studies.common.options import ON_A_FILE, OnText, Options
from fedsim.experiments.studies.common.trained import Trained, cell
from fedsim.materials import load_materials
from fedsim.planner.gradient_norms import GradientNorms, random_users
from fedsim.planner.variants import tried, with_noise
from fedsim.report.grid_result import CellResult, GridResult
from fedsim.sweep.cells import Cell, parse_variation

EPSILONS, GROUP_SIZES, COHORT_SIZES, LARGEST = (1, 8), (1, 2, 4, 8), (16, 32, 64, 128), 256
QUICK_EPSILONS, QUICK_GROUP_SIZES, QUICK_COHORT_SIZES, QUICK_LARGEST = (8,), (1, 2, 4), (4, 8), 16
RESAMPLES = 200
SEED = 11
BUILT_IN = "Shakespeare"

Key = tuple[float, int, int]  # ε, G, M


def grid(quick: bool, options: Options) -> Iterator[Cell]:
    """Yield ULS at every ε and every split G·M of the budgets up to the largest."""
    epsilons, sizes, cohorts, largest = (
        (QUICK_EPSILONS, QUICK_GROUP_SIZES, QUICK_COHORT_SIZES, QUICK_LARGEST)
        if quick
        else (EPSILONS, GROUP_SIZES, COHORT_SIZES, LARGEST)
    )
    for epsilon, size, cohort in product(options.epsilons or epsilons, sizes, cohorts):
        if size * cohort > largest:
            continue
        config = options.base(
            f"privacy.epsilon={epsilon}",
            f"strategy.group_size={size}",
            f"strategy.cohort_size={cohort}",
        )
        settings = {"epsilon": f"{epsilon:g}", "group_size": size, "cohort_size": cohort}
        yield cell("uls", settings, config, quick)


def starting_norms(config: Config) -> GradientNorms:
    """Return the estimate of `fedsim plan` for L_ULS(G) at the starting model."""
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    task = tried(with_noise(config, 1.0), materials).task
    return GradientNorms(materials, task, random_users(config.seed, materials.split.num_users))


def complete(measurement: GridResult) -> dict[Key, CellResult]:
    """Return the lines of all budgets below the first one with a run without a finite loss.

    Raises:
        ConfigError: there is no such budget.
    """
    lines = {_key(line): line for line in measurement.lines}
    gaps = [
        size * cohort
        for (_, size, cohort), line in lines.items()
        if line.loss is None or line.num_diverged or line.failures
    ]
    end = min(gaps, default=math.inf)
    usable = {key: line for key, line in lines.items() if key[1] * key[2] < end}
    if not usable:
        raise ConfigError(
            "estimate-and-double-text: a run of the smallest budget has no finite loss, so there "
            "is nothing to compare; see measurement.json"
        )
    return usable


def compare(
    measurement: GridResult, gradient_norm: Callable[[int], float], name: str = BUILT_IN
) -> Compared:
    """Return every strategy's sub-optimality on the mean losses of a text, with intervals."""
    lines = complete(measurement)
    sigmas = {(key[0], key[2]): line.noise_multiplier or 0.0 for key, line in lines.items()}
    by_seed = {key: np.array(line.losses) for key, line in lines.items()}
    losses = {key: float(values.mean()) for key, values in by_seed.items()}
    errors = standard_errors(by_seed)
    source = np.random.default_rng(SEED)
    resampled = []
    for _ in range(RESAMPLES):
        redrawn = {key: source.normal(loss, errors[key[0]]) for key, loss in losses.items()}
        rows = suboptimality(redrawn, [gradient_norm], lambda *key: sigmas[key])
        resampled.append([row.suboptimality for row in rows])
    rows = suboptimality(losses, [gradient_norm], lambda *key: sigmas[key])
    return Compared(name, losses, rows, np.array(resampled))


def standard_errors(by_seed: Mapping[Key, npt.NDArray[np.float64]]) -> dict[float, float]:
    """Return, by ε, the standard error of a mean loss over seeds, the same for all splits.

    The common part of all losses of a seed (its held-out text) does not affect differences between
    splits, so it is removed: the residuals of rows and columns are pooled. Returns 0 for one seed
    or one split, as their spread is unknown.

    Args:
        by_seed: (seeds,) losses of each point.
    """
    errors = {}
    for epsilon in {key[0] for key in by_seed}:
        table = np.array([losses for key, losses in by_seed.items() if key[0] == epsilon])
        points, seeds = table.shape
        residuals = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
        freedom = (points - 1) * (seeds - 1)
        variance = float((residuals**2).sum()) / freedom if freedom else 0.0
        errors[epsilon] = math.sqrt(variance / seeds)
    return errors


def conditions(measurement: GridResult, norms: GradientNorms, task: Compared) -> list[str]:
    """Return the means, and the conditions of the analysis."""
    largest = max(size * cohort for _, size, cohort in task.losses)
    asked = ", ".join(f"L({size}) = {norm:.4g}" for size, norm in sorted(norms.medians.items()))
    rates = Counter(rate for line in measurement.lines for rate in line.chosen.values())
    chosen = ", ".join(f"{rate} for {count}" for rate, count in sorted(rates.items()))
    return [
        means(task),
        f"{len(task.losses)} of {len(measurement.lines)} splits are compared, with budgets up to "
        f"{largest}. The comparison ends before the first budget with a run without finite loss.",
        f"Median norms of {len(norms.users)} users' averaged gradients at the starting "
        f"model: {asked}; computed on their texts, for which no ε here accounts.",
        f"Learning rates of the {len(measurement.lines)} splits: {chosen or 'as configured'}.",
        f"95 % intervals are from {RESAMPLES} redraws of all mean losses. Their spread is that "
        "over seeds, less the shift that all losses of a seed share. One seed gives no interval.",
    ]


def study(options: Options) -> Trained:
    """Return the study of the built-in texts or of a file, with the computation of L_ULS(G)."""
    norms = starting_norms(next(grid(options.quick, options)).config)
    text = options.data.name if options.data else BUILT_IN

    def compared(measurement: GridResult) -> Compared:
        return compare(measurement, norms, text)

    return Trained(
        name="estimate-and-double-text",
        title="How group and cohort size are chosen for ULS, on real text",
        explanation=__doc__,
        cells=partial(grid, options=options),
        notes=lambda measurement: conditions(measurement, norms, compared(measurement)),
        more=lambda measurement: {
            "suboptimality.csv": [row._asdict() for row in compared(measurement).rows]
        },
        draw=lambda measurement: draw([compared(measurement)], _terms(measurement)),
        keys=[parse_variation("server.learning_rate=0.15,0.5", "--tune")],
        seeds=2,
    )


run = OnText(study, takes=("epsilons", *ON_A_FILE))


def _key(line: CellResult) -> Key:
    settings = line.settings
    return float(settings["epsilon"]), int(settings["group_size"]), int(settings["cohort_size"])


def _terms(measurement: GridResult) -> str:
    epsilons = ", ".join(dict.fromkeys(line.settings["epsilon"] for line in measurement.lines))
    terms = "; or ".join(dict.fromkeys(line.terms for line in measurement.lines if line.terms))
    return f"each loss is of runs promised ε = {epsilons}; {terms}"
