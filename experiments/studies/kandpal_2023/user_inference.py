"""Kandpal et al. 2023, §4, Tables 2 and 5, Figure 5: user inference and its mitigations.

An attacker has a few texts of a user that were not trained on. The attack compares their likelihood
under the model and under its starting point, to decide whether the user was trained on. The table
extends their Table 2 by data limits, deduplication, clipping, early stopping and user-level
guarantees. It also has their Figure 5: planted users (canaries) with l shared tokens in all
examples.

Users are speakers of Shakespeare's plays with enough speeches; half of them are held out. Losses
are measured on held-out text of trained users. Losses and rates are computed on private text; the
privacy guarantee does not cover them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

from fedsim.attacks.folder import write_attack
from fedsim.attacks.user_inference import attack_run
from fedsim.experiments.studies.common.output import (
    Form,
    Result,
    Table,
    panels,
    steps,
    study_of_runs,
)
from fedsim.experiments.studies.common.runs import trained_once
from fedsim.experiments.studies.kandpal_2023.user_inference_runs import (
    BATCH_SIZE,
    CLIP,
    EXAMPLE_DELTA,
    FULL,
    QUICK,
    SAMPLES,
    Case,
    Row,
    Scale,
    cases,
)
from fedsim.report.style import INK, MUTED, colour
from fedsim.report.wording import terms_text

EXAMPLE_TERMS = (
    f"The row of example-level DP is calibrated to ε = 8 at δ = {EXAMPLE_DELTA:g}; unit: example; "
    "neighbouring relation: add-or-remove-one example; sampler: Poisson sampling of examples; "
    "accountant: pld."
)


TITLE = "User inference against fine-tuning on Shakespeare's speakers, and what mitigates it"


@study_of_runs("user-inference", TITLE, __doc__)
def run(folder: Path, quick: bool) -> Result:
    """Train and attack the runs in `folder`."""
    scale = QUICK if quick else FULL
    rows = [attacked(case, folder) for case in steps([*cases(scale, folder)], "user inference")]
    bounds = [(row.measured().auroc, row.report.bound.auroc) for row in rows]
    above = [bound is not None and area > bound for area, bound in bounds]
    bounded = sum(bound is not None for _, bound in bounds)
    beyond = [most for row in rows if (most := beyond_bound(row)) is not None]
    return Result(
        settings=_settings(scale, rows),
        notes=[
            f"{bounded} runs have a finite ε for users. In {sum(above)} of them the attack's AUROC "
            "is above the bound that follows from ε.",
            f"A trade-off curve bounds {len(beyond)} ROCs. {sum(m > 0 for m in beyond)} of them "
            "rise above it by more than chance explains (one-sided 97.5 % limits).",
        ],
        table=Table.of([_shown(row) for row in rows], _COLUMNS),
        records=[_record(row) for row in rows],
        figure=draw(rows),
    )


def beyond_bound(row: Row) -> float | None:
    """Return the maximum by which the mean's ROC exceeds the run's trade-off bound, or None.

    Both rates are replaced by their one-sided 97.5 % limits (Clopper and Pearson 1934), in favour
    of the bound: a positive result is more than the random choice of about a hundred users
    explains.
    """
    bound = row.report.privacy.trade_off
    if row.report.bound.auroc is None or bound is None:
        return None
    measured = next(curve for curve in row.group.curves if curve.statistic == "mean")
    numbers = row.group.users_in, row.group.users_out
    found = np.round(np.array(measured.true_positive_rates) * numbers[0])
    called = np.round(np.array(measured.false_positive_rates) * numbers[1])
    least = special.betaincinv(np.maximum(found, 0.5), numbers[0] - found + 1.0, 0.025)
    most = special.betaincinv(called + 1.0, np.maximum(numbers[1] - called, 0.5), 0.975)
    allowed = np.interp(most, bound.false_positive_rates, bound.true_positive_rates)
    return float(np.max(np.where(found > 0, least, 0.0) - allowed))


def attacked(case: Case, folder: Path) -> Row:
    """Train the case unless its run is finished, attack it, and return the result."""
    out = folder / case.name.replace(" ", "-").replace(",", "").replace("=", "")
    start = trained_once(case.config, out).utility.initial
    report = attack_run(out, samples=SAMPLES, checkpoints=case.kind == "none")
    write_attack(report, out / "attack")
    return Row(case, report, start.loss)


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


_COLUMNS: dict[str, tuple[str, Form]] = {
    "run": ("run", "s"),
    "ε for users": ("promise", "s"),
    "held-out loss": ("loss_in", ".3f"),
    "gap": ("gap", "+.3f"),
    "AUROC, mean": (f"auroc_mean_{max(SAMPLES)}", ".3f"),
    "95 %": ("interval", "s"),
    "max": (f"auroc_max_{max(SAMPLES)}", ".3f"),
    "min": (f"auroc_min_{max(SAMPLES)}", ".3f"),
    "TPR at 1 %": ("tpr_0.01", _rate),
    "TPR at 5 %": ("tpr_0.05", _rate),
    "TPR at 10 %": ("tpr_0.1", _rate),
    "users in + out": ("users", "s"),
}


def _shown(row: Row) -> dict[str, object]:
    """Return the record, with further texts for the table."""
    low, high = row.measured().auroc_interval
    return {
        **_record(row),
        "promise": row.promise,
        "gap": row.report.final.gap,
        "interval": f"{low:.3f} to {high:.3f}",
        "users": f"{row.group.users_in} + {row.group.users_out}",
    }


def _record(row: Row) -> dict[str, object]:
    mean, privacy = row.measured(), row.report.privacy
    return {
        "run": row.case.name,
        "kind": row.case.kind,
        "group": row.group.name,
        "epsilon": privacy.epsilon,
        "delta": privacy.delta if privacy.epsilon is not None else None,
        "terms": terms_text(privacy),
        "auroc_bound": row.report.bound.auroc,
        "loss_in": row.report.final.loss_in,
        "loss_out": row.report.final.loss_out,
        "users_in": row.group.users_in,
        "users_out": row.group.users_out,
        "samples": mean.samples,
        "auroc_low": mean.auroc_interval[0],
        "auroc_high": mean.auroc_interval[1],
        **{
            f"auroc_{m.statistic}_{m.samples}": m.auroc
            for m in sorted(row.group.measured, key=lambda m: (m.samples, m.statistic))
        },
        **{f"tpr_{o.false_positive_rate:g}": o.true_positive_rate for o in mean.operating},
        "rank_correlation": row.report.rank_correlation,
    }


def _settings(scale: Scale, rows: Sequence[Row]) -> tuple[str, ...]:
    terms = {terms_text(r.report.privacy) for r in rows if r.report.privacy.epsilon is not None}
    return (
        *(f"Terms of an ε for users: {text}." for text in sorted(terms)),
        *(
            f"{EXAMPLE_TERMS} Its ε for users, in the table, is larger: a user has many examples."
            for row in rows
            if row.case.kind == "example-level"
        ),
        f"All parameters of tiny-gpt are trained. Runs without noise: {scale.rounds} rounds, Adam "
        f"with learning rate {scale.learning_rate:g}, about {BATCH_SIZE} examples per round, "
        f"equally many passes in each run, clips at {CLIP:g}. Attacks: {max(SAMPLES)} "
        "samples per user, 100 bootstrap resamples of the users.",
        "Runs with noise: SGD and normalised clips. To protect examples, a fifth of the rounds, "
        "each with a sixth of all examples. To protect users, a tenth of the rounds, each with "
        "half of all users or examples, and four examples per user. No rate or clip was tuned.",
        f"Every speaker has {scale.texts} different speeches, cut at 32 tokens, 40 % of them held "
        "out; each begins with the speaker's name, as the plays print it.",
        f"Held-out loss before the first round of the first run: {rows[0].initial_loss:.3f}.",
        "Repeated texts: every third text of a user is in the data twice, and the attacker can "
        "have either copy. After deduplication this is the non-private row.",
    )


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the AUROC of every run with its interval, and the bounds by the guarantees."""
    note = "Bars: the middle 95 % of a bootstrap over users. Ticks: what the guarantee allows; "
    note += "; ".join(
        sorted({terms_text(r.report.privacy) for r in rows if r.report.privacy.epsilon is not None})
    )
    if any(row.case.kind == "example-level" for row in rows):
        note += f". {EXAMPLE_TERMS}"
    size, label = (9.0, 1.7 + 0.3 * len(rows)), f"AUROC with {max(SAMPLES)} samples a user"
    figure, (axes,) = panels(size, TITLE, note, [[""]], x=label, y="")
    kinds = list(dict.fromkeys(row.case.kind for row in rows))
    for place, row in enumerate(rows):
        _dot(axes, place, row, colour(kinds.index(row.case.kind)))
    axes.axvline(0.5, color=MUTED, linestyle="--", linewidth=1.0)
    axes.set_yticks(range(len(rows)), [row.case.name for row in rows], fontsize=8, color=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    return figure


def _dot(axes: Axes, place: int, row: Row, hue: str) -> None:
    mean = row.measured()
    axes.plot(mean.auroc_interval, (place, place), color=hue, linewidth=2.0)
    axes.plot(mean.auroc, place, "o", color=hue, markersize=5)
    if row.report.bound.auroc is not None:
        axes.plot(row.report.bound.auroc, place, "|", color=INK, markersize=9)
