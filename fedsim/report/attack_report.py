"""Schema of `attack.json`: typed and frozen, like the run's report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedsim.report.schema import (
    Count,
    NotNegative,
    Number,
    Privacy,
    Probability,
    Record,
    Shares,
    Text,
    load_record,
)

Bounds = Annotated[tuple[Probability, Probability], Field(strict=False)]
Statistic = Literal["mean", "max", "min"]


class Operating(Record):
    """The true positive rate at a false positive rate; None if too few users are held out.

    With n held-out users, false positive rates between 0 and 1/n cannot be measured (Kandpal et al.
    2023, Table 4: "N/A").
    """

    false_positive_rate: Probability
    true_positive_rate: Probability | None
    interval: Bounds | None


class Measured(Record):
    """One statistic at a number of samples per user; intervals are 95 % bootstrap intervals."""

    statistic: Statistic
    samples: Annotated[int, Field(ge=1)]
    auroc: Probability
    auroc_interval: Bounds
    auroc_stddev: NotNegative
    operating: Annotated[tuple[Operating, ...], Field(strict=False)]


class Curve(Record):
    """A ROC from (0, 0) to (1, 1), without the scores."""

    statistic: Statistic
    false_positive_rates: Shares
    true_positive_rates: Shares


class Group(Record):
    """An attack on a group: real users, canaries, or listeners (owners without own texts).

    The first entry of `measured` is the headline. All entries are about the same users: those with
    enough samples for the largest number of samples.
    """

    name: Literal["users", "canaries", "listeners"]
    users_in: Count
    users_out: Count
    left_out_in: Count
    left_out_out: Count
    measured: Annotated[tuple[Measured, ...], Field(strict=False, min_length=1)]
    curves: Annotated[tuple[Curve, ...], Field(strict=False)]


class Checkpoint(Record):
    """The attack, and the model's losses for both sides, after a round.

    Losses are nats per predicted token on the attacker's samples, which are not in the training
    data. `gap` is the held-out users' loss minus the trained users' loss.
    """

    round: Count
    auroc: Probability
    loss_in: Number
    loss_out: Number
    gap: Number


class Bound(Record):
    """The largest AUROC that the guarantee allows, or None and the reason."""

    auroc: Probability | None
    reason: Text


class AttackReport(Record):
    """The content of `attack.json`; top-level results are those of the first group's headline."""

    format: Literal[1] = 1
    run: Text
    title: Text
    reference: Text
    auroc: Probability
    auroc_interval: Bounds
    tpr_at_fpr: dict[str, Probability | None]
    users_in: Count
    users_out: Count
    samples_per_user: Annotated[int, Field(ge=1)]
    groups: Annotated[tuple[Group, ...], Field(strict=False, min_length=1)]
    final: Checkpoint
    checkpoints: Annotated[tuple[Checkpoint, ...], Field(strict=False)]
    rank_correlation: Number | None
    bound: Bound
    privacy: Privacy
    resamples: Annotated[int, Field(ge=2)]
    note: Text


def load_attack(run_dir: Path) -> AttackReport | None:
    """Read what `fedsim attack` left in a run folder; None if the run was not attacked.

    Raises:
        ConfigError: the file cannot be read, or is malformed.
    """
    path = run_dir / "attack" / "attack.json"
    return load_record(AttackReport, path) if path.exists() else None
