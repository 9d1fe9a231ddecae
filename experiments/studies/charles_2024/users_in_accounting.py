"""Charles et al. 2024, §4, Figure 5: hypothetical populations in the accounting.

The data stay the same. The noise is the amount that would give ε with 10 or 100 times as many
users, each sampled 10 or 100 times less often. This is hypothetical: no run here keeps that
promise.

The paper finds that more users help ELS more, and more compute helps ULS more (CC-News, ε = 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.config import Config
from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, base, cell
from fedsim.materials import load_materials
from fedsim.planner.budget import at_budget
from fedsim.planner.variants import with_noise
from fedsim.sampling import PoissonSampling
from fedsim.strategy import build_plan
from fedsim.sweep.cells import Cell, parse_variation

EPSILON, DELTA = 4.0, 1e-4
TIMES, BUDGETS = (1, 10, 100), (32, 128)
ULS, ELS = ("strategy.group_size=2",), ("strategy.name=els", "strategy.group_size=9")


def grid(quick: bool) -> Iterator[Cell]:
    """Yield both samplers at every budget, with noise for 1, 10 and 100 times the users."""
    for (name, overrides), budget, times in product(
        (("uls", ULS), ("els", ELS)),
        BUDGETS[:1] if quick else BUDGETS,
        TIMES[::2] if quick else TIMES,
    ):
        config = base(f"privacy.epsilon={EPSILON}", f"privacy.delta={DELTA}", *overrides)
        materials = load_materials(config.seed, config.data, config.model, "cpu")
        sized = at_budget(config, materials, budget)
        noise = hypothetical_noise(sized, times)
        settings = {"budget": budget, "users": f"{times}x"}
        yield cell(name, settings, with_noise(sized, noise), quick)


def hypothetical_noise(config: Config, times: int) -> float:
    """Return the noise multiplier that would be enough with `times` as many users.

    The cohort size stays the same, so the sampling probability is divided by `times`.
    """
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    plan = build_plan(with_noise(config, 1.0), materials)
    return calibrate_noise_multiplier(
        sampling=PoissonSampling(plan.sampling.probability / times),
        units_per_user=plan.units_per_user,
        rounds=config.strategy.rounds,
        epsilon=EPSILON,
        delta=DELTA,
    )


run = Trained(
    name="users-in-accounting",
    title="What more users would be worth: hypothetical populations in the accounting",
    explanation=__doc__,
    notes=lambda _: [
        f"With 10x and 100x users, ε = {EPSILON:g} (δ = {DELTA:g}; unit: user; relation: "
        "add-or-remove-one user; Poisson sampling; pld accountant for ULS, mixture for ELS) would "
        "hold only with that many users. The table has the ε of the actual runs, with the actual "
        "number of users."
    ],
    cells=grid,
    draw=picture(
        "users", "source", "budget", "Hypothetical: held-out loss if the accounting had more users"
    ),
    keys=[parse_variation("server.learning_rate=0.15,0.5", "--tune")],
)
