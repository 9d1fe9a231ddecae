"""The types of `report.json` and `metrics.jsonl`.

They are frozen and strictly typed, and refuse unknown keys, so that a misspelt field fails when it
is written.

JSON has no infinity and no NaN, but a run can diverge. Such a number is written as the string
"Infinity", "-Infinity" or "NaN" and read back as a float.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
)

from fedsim.config.errors import explain
from fedsim.errors import ConfigError
from fedsim.utils.files import write_atomically

REPORT_FILE = "report.json"
METRICS_FILE = "metrics.jsonl"


def _read_non_finite(value: object) -> object:
    return float(value) if value in ("Infinity", "-Infinity", "NaN") else value


Number = Annotated[float, BeforeValidator(_read_non_finite)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
Shares = Annotated[tuple[Probability, ...], Field(strict=False)]
_Kind = TypeVar("_Kind", bound=BaseModel)


class Record(BaseModel):
    """A frozen part of a report; an unknown key or a value of another type is an error."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", ser_json_inf_nan="strings", allow_inf_nan=True
    )


class TradeOffBound(Record):
    """Bounds on every attacker: `fedsim.accounting.trade_off.TradeOff.to_json`.

    They hold under the terms of ε. The last two fields bound the ROC, for pictures.
    """

    tests: Annotated[tuple[dict[str, JsonValue], ...], Field(strict=False)]
    priors: Shares
    auroc: Probability
    mu: NotNegative | None
    deltas: Annotated[tuple[dict[str, float], ...], Field(strict=False)]
    false_positive_rates: Shares
    true_positive_rates: Shares

    @property
    def roc(self) -> list[tuple[float, float]]:
        """The bound on the ROC: (false positive rate, true positive rate) pairs."""
        return list(zip(self.false_positive_rates, self.true_positive_rates, strict=True))


class Query(Record):
    """A query on the private text.

    `times` is None if unknown. `paid_by` says what covers the query; `covered` is whether ε does.
    """

    question: Text
    times: Count | None
    paid_by: Text
    covered: bool


class Privacy(Record):
    """The privacy guarantee: its terms, its mechanism and its assumptions.

    `epsilon` is None without a finite guarantee. `sampling_probability` is per unit and round.
    `noise_stddev` is the standard deviation of a round's fresh noise, in the units of the released
    estimate. `units_per_user` is the maximum number of sampled units per user (1 if units are
    users). `scores` counts private scores, which `rounds` leaves out.

    With `hypothetical`, epsilon belongs to another mechanism than the one that ran, such as Poisson
    sampling for shuffled passes, and is no guarantee. `trade_off` is None without a finite epsilon.
    `earlier_training` describes earlier training of the initial weights; the two ε add up for
    people whose text is in both.
    """

    unit: Text
    relation: Text
    epsilon: NotNegative | None
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] | None
    noise_multiplier: NotNegative | None
    sampling_probability: Probability | None
    sampler: Text
    rounds: Count
    scores: Count = 0
    clip: dict[str, JsonValue]
    estimator: dict[str, JsonValue]
    noise_stddev: NotNegative | None
    accountant: Text | None
    noise: Literal["seeded", "secure", "none"]
    assumptions: Texts
    units_per_user: Annotated[int, Field(ge=1)]
    hypothetical: bool
    statement: Text
    earlier_training: Texts = ()
    trade_off: TradeOffBound | None = None
    queries: Annotated[tuple[Query, ...], Field(strict=False)] = ()

    @property
    def promise(self) -> str:
        """The statement, and sentences on earlier training of the start, which ε leaves out."""
        return " ".join([self.statement, *self.earlier_training])


class HeldOut(Record):
    """Utility on held-out text: loss in nats per predicted token, perplexity, top-1 accuracy.

    `loss`, `perplexity` (infinite on overflow) and `accuracy_top1` are means over tokens, NaN if
    there are none. `user_loss` and `user_accuracy_top1` are means over users of the user's mean
    over tokens. `unit_loss` is the mean over units of the unit's mean over examples, as is
    `train_loss`. Older runs lack the last three.
    """

    loss: Number
    perplexity: Number
    accuracy_top1: Number
    user_loss: Number | None = None
    user_accuracy_top1: Number | None = None
    unit_loss: Number | None = None


class Scores(HeldOut):
    """Held-out utility, with the numbers of predicted tokens and of users that have any."""

    tokens: Count
    users: Count | None = None


class Utility(Record):
    """Utility of the initial and the final model; `last`: of the last parameters, if averaged."""

    initial: Scores
    final: Scores
    last: HeldOut | None = None


class Samples(Record):
    """Texts that the initial and the final model generated."""

    initial: Texts
    final: Texts


class CoveredScores(Record):
    """Held-out scores that ε covers, by one noisy sum: `fedsim.evaluation.private_scores`.

    `loss` and `accuracy_top1` are means over users; `loss` is at most its bound. `users` is the
    noisy number of users from the same release, at least 1. `loss_stddev` is the standard deviation
    of `loss` from the noise, to first order.
    """

    loss: NotNegative
    accuracy_top1: Probability
    users: NotNegative
    loss_stddev: NotNegative


class DataSummary(Record):
    """Counts of training data, held-out data, and dropped rows by reason.

    `canaries` counts planted users, including held-out ones; `notices` are sentences on the data.
    """

    users: Count
    examples: Count
    tokens: Count
    dropped: dict[str, Count]
    source: str
    held_out_examples: Count
    held_out_tokens: Count
    canaries: Count = 0
    notices: Texts = ()


class ModelSummary(Record):
    """The network: its size, its trained part and its origin."""

    name: str
    parameters: Count
    trainable_parameters: Count
    trainable_pattern: str
    lora_rank: Count
    origin: str
    quantisation: str | None = None


class Cost(Record):
    """Cost of the run; `gradients` counts computed per-example gradients.

    Older runs lack `planned_rounds`. A run that ended early has `rounds` below it.
    """

    gradients: Count
    expected_gradients: NotNegative | None
    seconds: NotNegative
    peak_memory_bytes: Count | None
    rounds: Count
    planned_rounds: Count | None = None


class RoundSummary(Record):
    """Summary of all rounds.

    `clipped_share` is the clipped share of all drawn units; ε does not cover it.
    `signal_over_noise` is the norm of the mean update divided by the norm of its noise. It is
    √(m − 1), with m the mean square of `release_over_noise`, so ε covers it. It is 0 if noise alone
    may explain m, and None without noise.
    """

    clipped_share: Probability | None
    signal_over_noise: NotNegative | None

    @classmethod
    def of(cls, lines: Sequence[RoundMetrics], entries: int) -> Self:
        """Summarise lines of the metrics; `entries` is the number of trained parameters."""
        counted = [line for line in lines if line.clipped is not None]
        units = sum(line.units or 0 for line in counted)
        ratios = [line.release_over_noise for line in lines if line.release_over_noise]
        signal = None
        if ratios:
            # For pure noise the mean of n squares has standard deviation √(2 / (n · entries)).
            mean = math.hypot(*ratios) / math.sqrt(len(ratios))
            lost = mean < 1.0 + math.sqrt(2.0 / (len(ratios) * entries))  # the square: twice that
            signal = 0.0 if lost else math.sqrt(mean - 1.0) * math.sqrt(mean + 1.0)
        return cls(
            clipped_share=sum(line.clipped or 0 for line in counted) / units if units else None,
            signal_over_noise=signal,
        )


class RunReport(Record):
    """The content of `report.json`.

    `settings` maps the dotted config keys of training to values. Older runs lack it and `rounds`.
    `diverged` is the error message of a diverged run, which has NaN as final scores. `halted` is
    the reason why the strategy ended the run early.
    """

    format: Literal[1] = 1
    name: Text
    title: Text
    created: Text
    privacy: Privacy
    utility: Utility
    data: DataSummary
    model: ModelSummary
    cost: Cost
    samples: Samples | None = None
    private_scores: CoveredScores | None = None
    settings: dict[str, JsonValue] = {}
    rounds: RoundSummary | None = None
    diverged: Text | None = None
    halted: Text | None = None
    machine: dict[str, JsonValue]
    versions: dict[str, str]

    @property
    def ended_early(self) -> bool:
        """Whether it did fewer rounds than planned, without divergence."""
        return self.diverged is None and self.cost.planned_rounds not in (None, self.cost.rounds)


class RoundMetrics(Record):
    """One line of `metrics.jsonl`: the state after a round; round 0 is the start.

    Lines from round 1 have `units`, `gradients`, `non_finite`, `clipped` (units) and
    `estimate_norm`. Evaluated rounds have `epsilon` and `held_out`. With each ε above 0 comes
    `epsilon_terms`: δ, unit, relation, sampler, accountant and noise source, in words.

    `release_over_noise` is the norm of the release divided by the norm of its noise, if there is
    noise. `clip_norm` is present if the clip changes, `released_share` if it adapts. ε covers these
    three. If `held_out` scores averaged parameters, `held_out_last` scores the last ones.
    """

    round: Count
    units: Count | None = None
    gradients: Count | None = None
    non_finite: Count | None = None
    clipped: Count | None = None
    train_loss: Number | None = None
    estimate_norm: Number | None = None
    release_over_noise: Number | None = None
    clip_norm: Number | None = None
    released_share: Number | None = None
    epsilon: Annotated[Number, Field(ge=0.0)] | None = None
    epsilon_terms: str | None = None
    held_out: HeldOut | None = None
    held_out_last: HeldOut | None = None
    private_scores: CoveredScores | None = None


def save_report(run_dir: Path, report: RunReport) -> Path:
    """Write `report.json` atomically and return its path."""
    path = run_dir / REPORT_FILE
    write_atomically(path, report.model_dump_json(indent=2) + "\n")
    return path


def load_report(run_dir: str | os.PathLike[str]) -> RunReport:
    """Read the `report.json` of a run folder.

    Raises:
        ConfigError: no such folder or file, or its content is not a report.
    """
    return load_record(RunReport, Path(run_dir) / REPORT_FILE)


def load_record(kind: type[_Kind], path: Path) -> _Kind:
    """Read a record from a JSON file.

    Raises:
        ConfigError: no such file, or its content is no such record.
    """
    return _parse(kind, _read(path), f"{path}")


def load_metrics(run_dir: str | os.PathLike[str]) -> tuple[RoundMetrics, ...]:
    """Read the `metrics.jsonl` of a run folder; an empty file gives an empty tuple.

    Raises:
        ConfigError: no such folder or file, or a malformed line.
    """
    path = Path(run_dir) / METRICS_FILE
    # Not splitlines(): it also splits at characters that JSON strings may contain.
    return tuple(
        _parse(RoundMetrics, line, f"{path}, line {number}")
        for number, line in enumerate(_read(path).split("\n"), start=1)
        if line.strip()
    )


def is_finite(value: float | None) -> bool:
    """Return whether the value is a finite number, and not None."""
    return value is not None and math.isfinite(value)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(
            f"{path}: does not exist or cannot be read; give the folder of a finished run"
        ) from None


def _parse(kind: type[_Kind], text: str, place: str) -> _Kind:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        problem = explain(first, kind, {}) if first["loc"] else "not a complete record in JSON"
        more = f"; further errors: {len(others)}" if others else ""
        raise ConfigError(
            f"{place}: {problem}{more}. The file was damaged, edited or written by another version "
            "of fedsim; restore it, or run again"
        ) from None
