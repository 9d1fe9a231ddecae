"""Schema of `attack.json`: typed and frozen, like the run's report."""

from __future__ import annotations

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
)

Bounds = Annotated[tuple[Probability, Probability], Field(strict=False)]
Statistic = Literal["mean", "max", "min"]


class Operating(Record):
    """The true positive rate at a false positive rate; None where too few users are held out.

    Of n held-out users no share below 1/n but 0 can be let pass, and a rate that small is then not
    measured (Kandpal et al. 2023, Table 4: "N/A").
    """

    false_positive_rate: Probability
    true_positive_rate: Probability | None
    interval: Bounds | None


class Measured(Record):
    """One statistic with so many samples a user. Intervals: the middle 95 % of a bootstrap."""

    statistic: Statistic
    samples: Annotated[int, Field(ge=1)]
    auroc: Probability
    auroc_interval: Bounds
    auroc_stddev: NotNegative
    operating: Annotated[tuple[Operating, ...], Field(strict=False)]


class Curve(Record):
    """A ROC from (0, 0) to (1, 1), and the scores that it was made of are not kept."""

    statistic: Statistic
    false_positive_rates: Shares
    true_positive_rates: Shares


class Group(Record):
    """An attack on some users: the real ones, the planted ones, or owners who wrote nothing.

    The first of `measured` is what the attack is known by. All of them are about the same users:
    those with enough samples for the largest number of samples.
    """

    name: Literal["users", "canaries", "listeners"]
    users_in: Count
    users_out: Count
    left_out_in: Count
    left_out_out: Count
    measured: Annotated[tuple[Measured, ...], Field(strict=False, min_length=1)]
    curves: Annotated[tuple[Curve, ...], Field(strict=False)]


class Checkpoint(Record):
    """The attack, and how well the model does on both sides, after a round.

    Losses are nats a predicted token on the samples that the attacker may know, none of which was
    trained on; `gap` is held-out users' loss minus trained users'.
    """

    round: Count
    auroc: Probability
    loss_in: Number
    loss_out: Number
    gap: Number


class Bound(Record):
    """The AUROC that the guarantee allows such an attack, or why it bounds nothing."""

    auroc: Probability | None
    reason: Text


class AttackReport(Record):
    """The whole of `attack.json`; what is not in a group is of the first group's headline."""

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
