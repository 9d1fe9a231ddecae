"""What a run says about itself: the types of `report.json` and `metrics.jsonl`.

Frozen, strictly typed, and no unknown key: a misspelt field fails where it is written, not where
it is read.

JSON has no infinity and no NaN, yet a run can diverge. Such a number is written as the string
"Infinity", "-Infinity" or "NaN" and read back as the float.
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
    """What an attacker can make of it: `fedsim.accounting.trade_off.TradeOff.to_json`.

    Upper bounds under the terms of ε; the rates at the end are the bound on a ROC, for pictures.
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
        """The bound on a ROC: a true positive rate at each false positive rate."""
        return list(zip(self.false_positive_rates, self.true_positive_rates, strict=True))


class Query(Record):
    """Something that was asked of the private text.

    `times` is None where nobody counted; `paid_by` says what pays for it, `covered` whether ε does.
    """

    question: Text
    times: Count | None
    paid_by: Text
    covered: bool


class Privacy(Record):
    """What is promised, to whom, by which mechanism, and what had to be assumed.

    `epsilon` is None where there is no finite guarantee; then the reports say so in words.
    `sampling_probability` is that of one unit in one round; `noise_stddev` is of what a round draws
    anew, in the units of the released estimate; `units_per_user` is how many sampled units a user
    can own (1 when the units are users). `scores` counts private scores, which are not among
    `rounds`. `hypothetical` says that epsilon is of another mechanism
    than the one that ran, such as Poisson sampling where passes were shuffled: it is then no
    guarantee. `trade_off` is None without a finite epsilon. `earlier_training` says what the start
    was trained on before: where the people are the same, that counts too.
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
        """The statement, and what the start was trained on before, which it does not count."""
        return " ".join([self.statement, *self.earlier_training])


class HeldOut(Record):
    """Utility on held-out text: mean nats a predicted token, its exponential, a share of 1.

    The first three are means over tokens; the others are absent from older runs. `user_loss` and
    `user_accuracy_top1` are means over users of each one's mean over tokens. `unit_loss` is the
    mean that `train_loss` is: over units (users, or examples where these are drawn) of each one's
    mean over its examples.
    """

    loss: Number
    perplexity: Number
    accuracy_top1: Number
    user_loss: Number | None = None
    user_accuracy_top1: Number | None = None
    unit_loss: Number | None = None


class Scores(HeldOut):
    """Held-out utility with the number of predicted tokens, and of users, it is the mean of."""

    tokens: Count
    users: Count | None = None


class Utility(Record):
    """Before the first round and after the last; `last` is of the last parameters of an average."""

    initial: Scores
    final: Scores
    last: HeldOut | None = None


class Samples(Record):
    """Text that the model wrote by itself before the first round and after the last."""

    initial: Texts
    final: Texts


class CoveredScores(Record):
    """Held-out scores that ε covers, by one noisy sum: `fedsim.evaluation.private_scores`."""

    loss: NotNegative
    accuracy_top1: Probability
    users: NotNegative
    loss_stddev: NotNegative


class DataSummary(Record):
    """What was trained on, what was held out, and a count for each reason of dropping.

    `canaries` counts planted users, the held-out ones too; `notices` are sentences about the data.
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
    """Which network, how much of it moved, and where it came from."""

    name: str
    parameters: Count
    trainable_parameters: Count
    trainable_pattern: str
    lora_rank: Count
    origin: str


class Cost(Record):
    """What it took; `gradients` counts per-example gradients computed.

    `planned_rounds` is absent from older runs; a run that ended early did fewer.
    """

    gradients: Count
    expected_gradients: NotNegative | None
    seconds: NotNegative
    peak_memory_bytes: Count | None
    rounds: Count
    planned_rounds: Count | None = None


class RoundSummary(Record):
    """What all rounds were like.

    `clipped_share` is of all drawn units, not protected. `signal_over_noise` follows from the
    releases, which ε counts: how long the mean of the updates is beside its noise. It is the root
    of the mean square of `release_over_noise` less 1; 0 where noise alone may be as long, None
    without noise.
    """

    clipped_share: Probability | None
    signal_over_noise: NotNegative | None

    @classmethod
    def of(cls, lines: Sequence[RoundMetrics], entries: int) -> Self:
        """Return the summary of some lines of the metrics; `entries` are trained."""
        counted = [line for line in lines if line.clipped is not None]
        units = sum(line.units or 0 for line in counted)
        ratios = [line.release_over_noise for line in lines if line.release_over_noise]
        signal = None
        if ratios:
            # By noise alone the mean of n squares has a standard deviation of √(2 / (n · entries)).
            mean = math.hypot(*ratios) / math.sqrt(len(ratios))
            lost = mean < 1.0 + math.sqrt(2.0 / (len(ratios) * entries))  # the square: twice that
            signal = 0.0 if lost else math.sqrt(mean - 1.0) * math.sqrt(mean + 1.0)
        return cls(
            clipped_share=sum(line.clipped or 0 for line in counted) / units if units else None,
            signal_over_noise=signal,
        )


class RunReport(Record):
    """The whole of `report.json`.

    `settings` are the keys of the config that training depends on, dotted, with values; they and
    `rounds` are absent from older runs. `diverged` says why there is no outcome: final scores are
    NaN. `halted` says why the strategy ended the run before its last round.
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
        """Whether it has fewer rounds than its config, for another reason than that it diverged."""
        return self.diverged is None and self.cost.planned_rounds not in (None, self.cost.rounds)


class RoundMetrics(Record):
    """One line of `metrics.jsonl`: the state after a round, or, for round 0, the start.

    From round 1 on `units`, `gradients`, `non_finite`, `clipped` (units) and `estimate_norm` are
    there. Evaluated rounds have `epsilon` and `held_out`, and beside each ε above 0
    `epsilon_terms`: δ, unit, relation, sampler, accountant and noise source, in words.
    `release_over_noise` is there where there is noise: the norm of the release over that of its
    noise. `clip_norm` is there where the clip moves, `released_share` where it adapts. These three
    follow from releases that ε counts. Where `held_out` is of an average of parameters,
    `held_out_last` is of the last ones.
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
    """Write `report.json` whole and return its path."""
    path = run_dir / REPORT_FILE
    write_atomically(path, report.model_dump_json(indent=2) + "\n")
    return path


def load_report(run_dir: str | os.PathLike[str]) -> RunReport:
    """Read the `report.json` of a run folder.

    Raises:
        ConfigError: no such folder or file, or its content is not a report.
    """
    path = Path(run_dir) / REPORT_FILE
    return _parse(RunReport, _read(path), f"{path}")


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
    """Return whether there is a number and it is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(
            f"{path}: is not there or cannot be read; give the folder of a finished run"
        ) from None


def _parse(kind: type[_Kind], text: str, place: str) -> _Kind:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{place}: {error}") from None
