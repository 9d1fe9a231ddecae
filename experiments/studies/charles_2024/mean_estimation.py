"""Charles et al. 2024, Figure 7: mean estimation by ELS, and by ULS with several group sizes.

μ ~ N(0, I), users' means μ_u ~ N(μ, σ₁² I), their examples x ~ N(μ_u, σ₂² I). DP-SGD on half the
squared distance estimates μ from 0. All samplers compute B gradients per round in expectation; the
loss is the squared distance of the last iterate to μ. The paper does not print the values of its
axes and grids; these are ours.

As in the paper, the reported loss is that of the best setting of the sweep, chosen on the same
trials. `second_half_loss` in `table.csv` avoids this bias: it is the loss on the second half of the
trials of the setting that was best on the first half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fedsim.experiments.studies.charles_2024.mean_simulation import (
    Grid,
    Sampler,
    Sweep,
    draw_population,
    run_sweeps,
)
from fedsim.experiments.studies.common.intervals import mean_interval, ratio_interval
from fedsim.experiments.studies.common.output import (
    Result,
    Table,
    legend,
    listed,
    panels,
    steps,
    study,
)
from fedsim.report.style import MUTED, colour

USERS, EXAMPLES_PER_USER, DIMENSION, DELTA = 256, 16, 32, 1e-6
ELS = Sampler("example", 16)
SAMPLERS = (ELS, *(Sampler("user", size) for size in (1, 2, 4, 8, 16)))


class Case(NamedTuple):
    """Point of a panel: ε, B and σ₂."""

    epsilon: float
    budget: int
    within_user_stddev: float


DEFAULT = Case(epsilon=1.0, budget=64, within_user_stddev=1.0)
Results = dict[tuple[Case, Sampler], Sweep]

_SYMBOLS = {"epsilon": "ε", "budget": "B", "within_user_stddev": "σ₂"}
_AXES = {
    "epsilon": "ε",
    "budget": "B: gradients a round",
    "within_user_stddev": "σ₂: spread of a user's examples",
}


@dataclass(frozen=True)
class Panel:
    """A panel of the figure: the varied field of `Case` and its values, ascending."""

    varied: str
    values: tuple[float, ...] | tuple[int, ...]

    @property
    def cases(self) -> list[Case]:
        """The cases: defaults except for the varied field."""
        return [Case(**{**DEFAULT._asdict(), self.varied: value}) for value in self.values]

    @property
    def axis(self) -> str:
        """The label of the axis."""
        return _AXES[self.varied]

    @property
    def label(self) -> str:
        """The fixed fields, for the title."""
        fixed = [name for name in Case._fields if name != self.varied]
        return ", ".join(f"{_SYMBOLS[name]} = {getattr(DEFAULT, name):g}" for name in fixed)


@dataclass(frozen=True)
class Scale:
    """Size of the study."""

    trials: int
    rounds: int
    grid: Grid
    panels: tuple[Panel, ...]


FULL = Scale(
    trials=128,
    rounds=256,
    grid=Grid((4.0, 8.0, 16.0, 32.0, 64.0), tuple(2.0 ** (i / 2) for i in range(-12, 5))),
    panels=(
        Panel("epsilon", (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)),
        Panel("budget", (16, 32, 64, 128, 256, 512)),
        Panel("within_user_stddev", (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
    ),
)
QUICK = Scale(
    trials=24,
    rounds=64,
    grid=Grid((4.0, 16.0), tuple(2.0 ** (i / 2) for i in range(-10, 3))),
    panels=(
        Panel("epsilon", (1.0, 8.0)),
        Panel("budget", (64, 512)),
        Panel("within_user_stddev", (1.0, 8.0)),
    ),
)


@study(
    "mean-estimation",
    "Finding the mean of users: example-level sampling, and user-level by group size",
    __doc__,
)
def run(quick: bool) -> Result:
    """Run all trials."""
    scale = QUICK if quick else FULL
    results = compute(scale)
    terms = (
        f"every point is (ε, δ = {DELTA:g})-DP with the ε that is shown with it; unit: user; "
        "neighbouring relation: add-or-remove-one user; "
        f"{scale.rounds} rounds of Poisson sampling, of examples (ELS, mixture accountant) or of "
        "users (ULS, pld accountant); clip and learning rate were chosen by looking at the results"
    )
    edges = sum(sweep.at_edge for sweep in results.values())
    return Result(
        settings=settings(scale, terms),
        notes=[
            f"In {edges} of {len(results)} sweeps the best learning rate is the least or largest "
            "tried."
        ],
        table=table(results, scale.panels),
        records=records(results, scale.panels),
        figure=draw(results, scale.panels, terms),
    )


def compute(scale: Scale) -> Results:
    """Return the sweeps of all samplers with enough users, for every case of the panels."""
    cases = list(dict.fromkeys(case for panel in scale.panels for case in panel.cases))
    cases.sort(key=lambda case: case.within_user_stddev)  # one population at a time in memory
    possible = [
        (case, sampler)
        for case in cases
        for sampler in SAMPLERS
        if case.budget <= sampler.group_size * USERS
    ]
    results: Results = {}
    shape, stddev = (scale.trials, USERS, EXAMPLES_PER_USER, DIMENSION), None
    for case, sampler in steps(possible, "mean estimation"):
        if stddev != case.within_user_stddev:
            stddev = case.within_user_stddev
            population = draw_population(shape, stddev, seed=7)
        (results[case, sampler],) = run_sweeps(
            population,
            sampler,
            case.budget,
            scale.grid,
            epsilons=(case.epsilon,),
            delta=DELTA,
            rounds=scale.rounds,
            seed=7,
        )
    return results


def settings(scale: Scale, terms: str) -> list[str]:
    """Return sentences on all fixed settings."""
    rates = scale.grid.learning_rates
    return [
        f"Terms: {terms}.",
        f"d = {DIMENSION}, N = {USERS} users with K = {EXAMPLES_PER_USER} examples, σ₁ = 1, "
        f"G_ELS = K; where not varied, ε = {DEFAULT.epsilon:g}, B = {DEFAULT.budget}, σ₂ = "
        f"{DEFAULT.within_user_stddev:g}. ULS samples B/G users and draws a new group for "
        "each in every round; it does not exist for B/G > N.",
        f"{scale.trials} trials; a trial's μ, examples and unscaled noise are the same for every "
        "sampler. The 95 % intervals are over trials, of ratios paired by trial.",
        f"Swept: clip norms {listed(scale.grid.clip_norms)}, with clipped gradients divided by the "
        f"clip norm, and {len(rates)} learning rates for gradients so scaled, from {rates[0]:.3g} "
        f"to {rates[-1]:.3g}, a factor of {rates[1] / rates[0]:.2f} apart. The least clip norm "
        "clips nearly every gradient, so smaller ones would give the same steps.",
        "Calibrated noise multipliers are rounded up to five digits.",
    ]


def records(results: Results, panels: tuple[Panel, ...]) -> list[dict[str, object]]:
    """Return the rows of table.csv, one per sampler and point of a panel."""
    rows: list[dict[str, object]] = []
    for panel in panels:
        for case in panel.cases:
            for sampler in SAMPLERS:
                if (case, sampler) not in results:
                    continue
                sweep = results[case, sampler]
                clip_norm, rate = sweep.grid.settings[sweep.best()]
                loss = mean_interval(sweep.errors_of_best)
                later = mean_interval(sweep.errors_of_second_half)
                ratio = ratio_interval(sweep.errors_of_best, results[case, ELS].errors_of_best)
                rows.append(
                    {"panel": panel.varied, **case._asdict()}
                    | {"sampler": sampler.level, "group_size": sampler.group_size}
                    | {"sampling_probability": sampler.sampling(case.budget, USERS).probability}
                    | {"noise_multiplier": sweep.noise_multiplier}
                    | {"l2_clip_norm": clip_norm, "learning_rate": rate}
                    | {"loss": loss.value, "loss_low": loss.low, "loss_high": loss.high}
                    | {"second_half_loss": later.value, "second_half_low": later.low}
                    | {"second_half_high": later.high, "loss_over_els": ratio.value}
                    | {"loss_over_els_low": ratio.low, "loss_over_els_high": ratio.high}
                )
    return rows


def table(results: Results, panels: tuple[Panel, ...]) -> Table:
    """Return a row for every case: the loss of every sampler, and ULS with G = 1 over ELS."""
    rows = []
    for case in dict.fromkeys(case for panel in panels for case in panel.cases):
        cells = [f"{case.epsilon:g}", str(case.budget), f"{case.within_user_stddev:g}"]
        for sampler in SAMPLERS:
            sweep = results.get((case, sampler))
            if sweep is None:
                cells.append("–")
                continue
            value, low, high = mean_interval(sweep.errors_of_best)
            cells.append(f"{value:.3f} ± {(high - low) / 2:.3f}")
        rows.append(cells)
    return Table(("ε", "B", "σ₂", *(sampler.label for sampler in SAMPLERS)), rows)


def draw(results: Results, settings: tuple[Panel, ...], terms: str) -> Figure:
    """Draw the loss against ε, B and σ₂."""
    figure, panes = panels(
        (11.5, 4.6),
        "Squared distance to the mean, best setting of each sampler",
        f"{terms}. Bars: 95 % intervals",
        [[panel.label for panel in settings]],
        x=[panel.axis for panel in settings],
        y="loss",
        share=(False, False),
    )
    for axes, panel in zip(panes, settings, strict=True):
        _curves(axes, results, panel)
    legend(figure, panes[0])
    return figure


def _curves(axes: Axes, results: Results, panel: Panel) -> None:
    for index, sampler in enumerate(SAMPLERS):
        seen = [case for case in panel.cases if (case, sampler) in results]
        losses = [mean_interval(results[case, sampler].errors_of_best) for case in seen]
        axes.errorbar(
            [float(getattr(case, panel.varied)) for case in seen],
            [loss.value for loss in losses],
            yerr=[loss.high - loss.value for loss in losses],
            fmt="o--" if sampler is ELS else "s-",
            color=MUTED if sampler is ELS else colour(index - 1),
            ms=3.5,
            lw=1.2,
            label=sampler.label,
            zorder=5 if sampler is ELS else 3,  # ULS with G = 1 is often just below it
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(list(panel.values), [f"{value:g}" for value in panel.values])
