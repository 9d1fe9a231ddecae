"""Charles et al. 2024, §3 and App. I: diversity of users' gradients.

The paper compares ULS with ELS at two extremes: all gradients of a user alike (L_ULS = L_ELS), or
orthogonal (L_ULS = L_ELS/√G). Here the ratio is measured on the speakers of Shakespeare's plays,
as App. I estimates L_ULS (eq. 8).

`ratio` divides the medians over all sampled users, with at most G examples each; a plan uses this
ratio. The quantiles are over users with at least G examples: root mean square of their example
gradients' norms over the norm of their mean. `needed` is the ratio above which ULS adds less noise
than ELS at equal privacy and compute (condition 7). D is the value for `fedsim plan
--gradient-diversity`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.config import parse_config
from fedsim.execution import Task, Unit
from fedsim.experiments.studies.common.output import Result, Table, legend, panels, steps, study
from fedsim.materials import Materials, load_materials
from fedsim.registry import resolve
from fedsim.report.style import MUTED, colour
from fedsim.sampling import PoissonSampling
from fedsim.seeding import stream
from fedsim.server_optimizer import ServerOptimizer
from fedsim.tensors import Tensors, add_, l2_norm, zeros_like

_BATCH, _LEARNING_RATE = 32, 0.003


class UserNorms(NamedTuple):
    """Norms of one user at one G, over the first min(n, G) examples of a random order.

    Attributes:
        group_size: G.
        examples: min(n, G).
        root_mean_square: root mean square of the norms of the example gradients.
        mean: norm of the mean of the example gradients.
    """

    group_size: int
    examples: int
    root_mean_square: float
    mean: float

    @property
    def ratio(self) -> float:
        """Ratio of the norms, >= 1: 1 if all gradients are equal, √examples if they are orthogonal.

        The square is the number of examples times the gradient diversity of Yin et al. 2018.
        """
        return self.root_mean_square / self.mean if self.mean > 0.0 else math.inf


def user_norms(
    materials: Materials, parameters: Tensors, user: int, group_sizes: Sequence[int]
) -> list[UserNorms]:
    """Return the user's norms at each G, ascending; a user has at least one example."""
    task = _task(materials, max(group_sizes))
    unit = task.unit(user, 0)
    total = zeros_like(parameters, torch.float64)
    ones = dict.fromkeys(total, 1.0)
    squares, norms = 0.0, []
    order = stream(materials.seed, "planning", 1, user).permutation(len(unit.lengths)).tolist()
    for count, row in enumerate(order, start=1):
        width = int(unit.lengths[row])
        one = Unit(user, unit.tokens[row : row + 1, :width], unit.lengths[row : row + 1])
        gradient = task.update(parameters, one, 0).values
        add_(total, gradient, ones)
        squares += l2_norm(gradient) ** 2
        last = count == len(order)
        for size in group_sizes:
            if size == count or (last and size > count):
                root_mean_square, mean = math.sqrt(squares / count), l2_norm(total) / count
                norms.append(UserNorms(size, count, root_mean_square, mean))
    return norms


def trained(materials: Materials, steps: int) -> Iterator[Tensors]:
    """Yield the parameters after each of `steps` non-private Adam steps on random examples."""
    task, optimizer = _task(materials, 1), ServerOptimizer("adam", _LEARNING_RATE)
    parameters: Tensors = materials.model.initial_parameters()
    state: Tensors = {}
    pool = materials.split.train_examples
    for step in range(steps):
        chosen = stream(materials.seed, "planning", 2, step).choice(pool, _BATCH, replace=False)
        tokens, lengths = materials.store.padded(np.sort(chosen))
        unit = Unit(0, torch.from_numpy(tokens), torch.from_numpy(lengths))
        gradient = dict(task.update(parameters, unit, 0).values)
        parameters, state = optimizer.step(parameters, gradient, state)
        yield parameters


def _task(materials: Materials, group_size: int) -> Task:
    task: Task = resolve("tasks", "fedsgd", "study")(materials, group_size=group_size)
    return task


GROUP_SIZES, QUICK_GROUP_SIZES = (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8)
NUM_USERS, QUICK_NUM_USERS = 128, 16
STEPS, QUICK_STEPS = 60, 5
EPSILON, DELTA, ROUNDS, COHORT, ELS_GROUP_SIZE = 8.0, 1e-4, 100, 32, 4
CONFIG = {
    "seed": 1,
    "data": {"source": "shakespeare", "cutting": "join"},
    "model": {"name_or_path": "tiny-gpt"},
}
TERMS = (
    f"noise multipliers keep (ε = {EPSILON:g}, δ = {DELTA:g})-DP; unit: user; neighbouring "
    f"relation: add-or-remove-one user; {ROUNDS} rounds of Poisson sampling, of users with "
    f"M = {COHORT} expected (ULS, pld accountant) or of at most {ELS_GROUP_SIZE} examples a user "
    "at the same expected gradients (ELS, mixture accountant)"
)


class Point(NamedTuple):
    """Norms of all users at one model and one G.

    `els_norm` and `uls_norm` are medians over all sampled users with at most G examples each, and
    `ratio` is their ratio. The quantiles are of the ratios of users with at least G examples.
    `diversity` is D of a plan from numbers: L_ULS² = L_ELS² (1 - D + D/G). By condition (7), ULS
    adds less noise than ELS if `ratio` exceeds `needed`.
    """

    model: str
    group_size: int
    els_norm: float
    uls_norm: float
    ratio: float
    users: int
    ratio_10: float
    ratio_50: float
    ratio_90: float
    orthogonal: float
    diversity: float
    needed: float


@study(
    "gradient-diversity", "How diverse real users' gradients are, between the two extremes", __doc__
)
def run(quick: bool) -> Result:
    """Measure at the starting model and after some training."""
    sizes = QUICK_GROUP_SIZES if quick else GROUP_SIZES
    num_users, num_steps = (QUICK_NUM_USERS, QUICK_STEPS) if quick else (NUM_USERS, STEPS)
    config = parse_config(CONFIG)
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    needed = {size: needed_ratio(materials, size) for size in steps(sizes, "noise multipliers")}
    models: dict[str, Tensors] = {"starting model": materials.model.initial_parameters()}
    *_, models[f"after {num_steps} steps"] = trained(materials, num_steps)
    measured = [
        point
        for name, parameters in models.items()
        for point in measure(materials, name, parameters, num_users, needed)
    ]
    records = [point._asdict() for point in measured]
    short = {"L_ULS": "uls_norm", "ratio": "ratio", "needed": "needed"}
    quantiles = {"10 %": "ratio_10", "50 %": "ratio_50", "90 %": "ratio_90", "√G": "orthogonal"}
    return Result(
        settings=(
            f"Terms: {TERMS}.",
            f"{num_users} random users of {materials.split.num_users}, seed {materials.seed}; "
            f"{materials.store.manifest['sequence_length']} tokens an example; tiny-gpt, all "
            "parameters; trained by Adam on random examples, without privacy.",
            "Norms are computed on the texts themselves and are not private.",
        ),
        table=Table.of(
            records,
            {
                "model": ("model", "s"),
                "G": ("group_size", "d"),
                **{head: (key, ".3g") for head, key in short.items()},
                "users": ("users", "d"),
                **{head: (key, ".3g") for head, key in quantiles.items()},
                "D": ("diversity", lambda value: "–" if math.isnan(value) else f"{value:.2f}"),
            },
        ),
        records=records,
        figure=draw(measured),
    )


def measure(
    materials: Materials, name: str, parameters: Tensors, num_users: int, needed: dict[int, float]
) -> list[Point]:
    """Return a point for each G, over random users."""
    order = stream(materials.seed, "planning").permutation(materials.split.num_users)
    rows = [
        user_norms(materials, parameters, int(user), list(needed))
        for user in steps(order[:num_users].tolist(), f"gradients, {name}")
    ]
    return points(name, rows, needed)


def points(name: str, rows: Sequence[Sequence[UserNorms]], needed: dict[int, float]) -> list[Point]:
    """Return medians and quantiles of users' norms; `rows` has a row per user, an entry per G."""
    els_norm = float(np.median([row[0].mean for row in rows]))
    points = []
    for column, size in enumerate(needed):
        cells = [row[column] for row in rows]
        uls_norm = float(np.median([cell.mean for cell in cells]))
        ratios = [cell.ratio for cell in cells if cell.examples == size]
        low, middle, high = (
            np.quantile(ratios, (0.1, 0.5, 0.9)) if ratios else (math.nan, math.nan, math.nan)
        )
        spread = 1.0 - 1.0 / size
        points.append(
            Point(
                model=name,
                group_size=size,
                els_norm=els_norm,
                uls_norm=uls_norm,
                ratio=els_norm / uls_norm,
                users=len(ratios),
                ratio_10=float(low),
                ratio_50=float(middle),
                ratio_90=float(high),
                orthogonal=math.sqrt(size),
                diversity=(1.0 - float(middle) ** -2) / spread if size > 1 else math.nan,
                needed=needed[size],
            )
        )
    return points


def needed_ratio(materials: Materials, group_size: int) -> float:
    """Return the L_ELS/L_ULS above which ULS adds less noise: B/M · σ_ULS/σ_ELS, condition (7)."""
    sizes = materials.split.user_sizes
    each = float(sizes.clip(max=group_size).mean())
    uls = PoissonSampling(COHORT / len(sizes))
    els = PoissonSampling(COHORT * each / float(sizes.clip(max=ELS_GROUP_SIZE).sum()))
    sigmas = [
        calibrate_noise_multiplier(
            sampling=sampler, units_per_user=units, rounds=ROUNDS, epsilon=EPSILON, delta=DELTA
        )
        for sampler, units in ((uls, 1), (els, ELS_GROUP_SIZE))
    ]
    return each * sigmas[0] / sigmas[1]


def draw(points: Sequence[Point]) -> Figure:
    """Draw the ratio against G between the extremes, with one panel per model."""
    names = list(dict.fromkeys(point.model for point in points))
    figure, panes = panels(
        (9.0, 4.2),
        "How far averaging shrinks a user's gradients",
        TERMS,
        [names],
        x="G: examples of a user",
        y="$L_{ELS}/L_{ULS}(G)$",
    )
    for axes, name in zip(panes, names, strict=True):
        _curves(axes, [point for point in points if point.model == name])
    legend(figure, panes[0])
    return figure


def _curves(axes: Axes, row: Sequence[Point]) -> None:
    sizes = [point.group_size for point in row]
    axes.plot(sizes, [p.orthogonal for p in row], ":", color=MUTED, label="orthogonal: √G")
    axes.plot(sizes, [1.0] * len(row), "--", color=MUTED, label="alike: 1")
    lows, highs = [p.ratio_10 for p in row], [p.ratio_90 for p in row]
    axes.fill_between(sizes, lows, highs, color=colour(0), alpha=0.2, lw=0, label="10 to 90 %")
    middles = [p.ratio_50 for p in row]
    axes.plot(sizes, middles, "o-", color=colour(0), ms=3.5, label="users with ≥ G")
    axes.plot(sizes, [p.ratio for p in row], "s-", color=colour(2), ms=3.5, label="all, at most G")
    needed = [p.needed for p in row]
    axes.plot(sizes, needed, "x-", color=colour(1), ms=4, label="ULS quieter above")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(sizes, [str(size) for size in sizes])
