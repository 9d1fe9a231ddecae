"""Charles et al. 2024, App. H, Figures 9 and 10: loss of ELS by the cap on a user's examples.

A small cap G_ELS discards text. A large cap lets a user change the sum more, so it needs more
noise. Every point has the same promise and computes the same number of gradients.

The paper finds that the median is always a good cap, on Stack Overflow and CC-News (350 M
parameters, 10,000 and 2,000 rounds).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np

from fedsim.experiments.studies.common.options import ON_A_FILE, OnText, Options
from fedsim.experiments.studies.common.series import draw
from fedsim.experiments.studies.common.trained import Trained, cell
from fedsim.sweep.cells import Cell, parse_variation

EPSILONS, BUDGETS, GROUP_SIZES = (1.0, 8.0), (32, 128), (1, 3, 9, 27, 81)
QUICK_EPSILONS, QUICK_BUDGETS, QUICK_GROUP_SIZES = (8.0,), (16,), (2, 9)


def grid(quick: bool, options: Options) -> Iterator[Cell]:
    """Yield ELS at every ε, budget and cap."""
    epsilons, budgets, sizes = (
        (QUICK_EPSILONS, QUICK_BUDGETS, QUICK_GROUP_SIZES)
        if quick
        else (EPSILONS, BUDGETS, GROUP_SIZES)
    )
    for epsilon, budget, size in product(
        options.epsilons or epsilons, options.budgets or budgets, sizes
    ):
        config = options.base(
            "strategy.name=els",
            f"privacy.epsilon={epsilon}",
            f"strategy.batch_size={budget}",
            f"strategy.group_size={size}",
        )
        settings = {"epsilon": f"{epsilon:g}", "budget": f"{budget:g}", "group_size": size}
        yield cell("els", settings, config, quick)


def median_size(options: Options) -> float:
    """Return the median number of training examples of a user."""
    return float(np.median(options.user_sizes))


def study(options: Options) -> Trained:
    """Return the study of the built-in texts, or of a file."""
    return Trained(
        name="group-size",
        title="How many examples a user may bring to example-level sampling",
        explanation=__doc__,
        cells=partial(grid, options=options),
        notes=lambda _: [f"The median user has {median_size(options):g} training examples."],
        draw=lambda measurement: draw(
            measurement,
            x="group_size",
            series="epsilon",
            panels="budget",
            title="Held-out loss of ELS against the cap on a user's examples",
            marks={"median": median_size(options)},
        ),
        keys=[parse_variation("server.learning_rate=0.15,0.5", "--tune")],
    )


run = OnText(study, takes=("epsilons", "budgets", *ON_A_FILE))
