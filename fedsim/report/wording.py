"""Numbers and sentences that all reports share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

from pydantic import JsonValue

from fedsim.accounting import trade_off
from fedsim.accounting.rounding import text_up
from fedsim.accounting.statement import noise_terms
from fedsim.report.schema import CoveredScores, Privacy, RoundSummary, RunReport

TOGETHER = (
    "Each ε is for one run alone. Runs on the same people's text add up: several runs together "
    "reveal more than one ε allows."
)
TIES = (
    "Seeded runs with equal seeds share start, split and noise, and with the same sampler also "
    "cohorts."
)
NOT_COVERED = "computed on private text, not protected by the privacy guarantee"
PRIVATE_SCORES = "Private scores, counted by the ε above"
NO_GUARANTEE = "No privacy guarantee"
NOTHING = "–"


def outcome_text(folder: Path, report: RunReport) -> str:
    """Return the guarantee, the utility and the paths of model and report, in three lines."""
    before, after = report.utility.initial, report.utility.final
    utility = "There is no held-out text, so no utility was measured; see data.held_out_examples."
    if after.tokens:
        losses = f"Held-out loss {before.loss:.4f} -> {after.loss:.4f} nats per token"
        worse = ", worse than it began" if after.loss > before.loss else ""
        utility = f"{losses}{worse} ({NOT_COVERED})."
    if report.private_scores is not None:
        utility += f"\n{PRIVATE_SCORES}: {scores_text(report.private_scores)}"
    saved = [folder / name for name in ("model", "adapter") if (folder / name).exists()]
    places = "   ".join(
        [
            *(f"{path.name.capitalize()}: {path}" for path in saved),
            f"Report: {folder / 'report.html'}",
        ]
    )
    return "\n".join([report.privacy.promise, utility, places])


def worse_text(report: RunReport) -> str:
    """Return advice for a run that ended with a higher loss than it began with; else ""."""
    utility = report.utility
    if report.rounds is None or not utility.final.loss > utility.initial.loss:
        return ""
    words = f"the run ends worse than it began, by its held-out loss ({NOT_COVERED})"
    return f"{words}: {cure_text(report.rounds)}"


def cure_text(rounds: RoundSummary) -> str:
    """Return advice for a rising loss, which depends on the signal over noise."""
    signal, slower = (
        rounds.signal_over_noise,
        "a smaller server.learning_rate (or none: fedsim then chooses one)",
    )
    if signal is None or signal >= 1.0:
        return f"try {slower}"
    return (
        f"signal over noise is {signal_text(signal)}. A larger cohort, a larger privacy.epsilon, "
        f"fewer trained parameters (model.trainable, model.lora_rank) or {slower} would help"
    )


def signal_text(signal: float | None) -> str:
    """Return signal over noise with two digits."""
    if signal is None:
        return NOTHING
    return f"about {signal:.2g}" if signal else "too small to measure in the releases"


def epsilon_text(epsilon: float | None) -> str:
    """Return ε with two decimals (below 0.1, two significant digits), rounded up.

    A guarantee must not look stronger than it is. Floating-point error (a relative 1e-9) does not
    count: a target of 8 that was met stays 8.00.

    Examples:
        >>> epsilon_text(2.0013), epsilon_text(8.0), epsilon_text(float("inf"))
        ('2.01', '8.00', '∞')
    """
    if epsilon is None:
        return NOTHING
    if not math.isfinite(epsilon):
        return "∞"
    if not 0.1 <= epsilon < 1e12:
        return text_up(epsilon, 2 if epsilon < 0.1 else 3).replace("e-0", "e-")
    cents = Decimal(epsilon * (1 - 1e-9)).quantize(Decimal("0.01"), rounding=ROUND_CEILING)
    return f"{cents:f}"


def epsilon_cell(privacy: Privacy | None) -> str:
    """Return ε for a table: "none" without a guarantee, a dash without a privacy block."""
    if privacy is None:
        return NOTHING
    epsilon = "none" if privacy.epsilon is None else epsilon_text(privacy.epsilon)
    return f"{epsilon} (hypothetical)" if privacy.hypothetical else epsilon


def delta_text(delta: float | None) -> str:
    """Return δ exactly, in its shortest form: 1e-5, 0.001."""
    if delta is None:
        return NOTHING
    mantissa, exponent, power = repr(delta).partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(power)}" if exponent else mantissa


def decimal_text(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` decimals; large or tiny ones in powers of ten."""
    if value is None:
        return NOTHING
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    plain = value == 0 or 10.0**-digits <= abs(value) < 1e7
    return f"{value:,.{digits}f}" if plain else f"{value:.{digits}g}"


def percent_text(share: float | None) -> str:
    """Return a share of 1 as a percentage with one decimal."""
    return NOTHING if share is None else f"{decimal_text(100 * share, 1)} %"


def count_text(value: float | None) -> str:
    """Return a count with separators for thousands."""
    return NOTHING if value is None else f"{value:,.0f}"


def duration_text(seconds: float) -> str:
    """Return seconds as "4.2 s", "3 min 20 s" or "2 h 05 min".

    Examples:
        >>> duration_text(4.2), duration_text(200.0), duration_text(7500.0)
        ('4.2 s', '3 min 20 s', '2 h 05 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def bytes_text(size: int | None) -> str:
    """Return a size in MiB or GiB."""
    if size is None:
        return NOTHING
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def settings_text(settings: Mapping[str, JsonValue]) -> str:
    """Return a clip or an estimator as one line: its kind, then its values."""
    shown = {key: value_text(value) for key, value in settings.items() if value is not None}
    texts = [text if key == "kind" else f"{key} = {text}" for key, text in shown.items()]
    return ", ".join(texts) or NOTHING


def guarantee_text(privacy: Privacy, epsilons: Sequence[float] = ()) -> str:
    """Return the headline: (ε, δ) and the unit, or `NO_GUARANTEE`.

    `epsilons` are several values under the same terms, shown in place of the block's ε.
    """
    if privacy.epsilon is None:
        return NO_GUARANTEE
    epsilon = ", ".join(dict.fromkeys(map(epsilon_text, epsilons or [privacy.epsilon])))
    delta = delta_text(privacy.delta)
    begins = "Simulated " if privacy.noise == "seeded" else ""
    begins = "hypothetical, no guarantee: " if privacy.hypothetical else begins
    return f"{begins}(ε = {epsilon}, δ = {delta}) for each {privacy.unit}"


def attacker_text(privacy: Privacy) -> str | None:
    """Return a sentence for laypeople on what the guarantee means for an attacker."""
    return trade_off.attacker_text(privacy.model_dump())


def scores_text(scores: CoveredScores) -> str:
    """Return private scores as a sentence, with the standard deviation of the loss."""
    return (
        f"Held-out loss {decimal_text(scores.loss)} ± {decimal_text(scores.loss_stddev)} nats a "
        f"token and top-1 accuracy {percent_text(scores.accuracy_top1)}: means over about "
        f"{count_text(scores.users)} users, from a noisy sum."
    )


def terms_text(privacy: Privacy) -> str:
    """Return the terms of ε, the caption of each displayed ε."""
    if privacy.epsilon is None:
        return f"{NO_GUARANTEE.lower()} (sampler: {privacy.sampler})"
    simulated = "simulated " if privacy.noise == "seeded" else ""
    begins = "hypothetical " if privacy.hypothetical else simulated
    noise = "" if privacy.noise == "none" else f"; {noise_terms(privacy.noise)}"
    earlier = "; not counted: earlier training of the starting model"
    return (
        f"{begins}ε at δ = {delta_text(privacy.delta)}; unit: {privacy.unit}; "
        f"neighbouring relation: {privacy.relation}; sampler: {privacy.sampler}; "
        f"accountant: {privacy.accountant}{noise}{earlier if privacy.earlier_training else ''}"
    )


def promised_text(privacy: Privacy) -> str:
    """Return ε with its terms in one sentence, or that there is no guarantee."""
    value = f"ε = {epsilon_text(privacy.epsilon)} at δ"
    none = "no guarantee: " if privacy.hypothetical else ""
    return none + terms_text(privacy).replace("ε at δ", value, 1)


def gaussian_text(privacy: Privacy) -> str | None:
    """Return a sentence on the Gaussian differential privacy near the trade-off curve, if any."""
    bound = privacy.trade_off
    return None if bound is None else trade_off.gaussian_text(bound.model_dump())


def rounds_text(privacy: Privacy) -> str:
    """Return the number of rounds, and of private scores if there are any."""
    if not privacy.scores:
        return count_text(privacy.rounds)
    scores = f"{privacy.scores} private score{'' if privacy.scores == 1 else 's'}"
    return f"{count_text(privacy.rounds)}, and {scores}"


def value_text(value: JsonValue) -> str:
    """Return a value as text; a dash for None."""
    if value is None:
        return NOTHING
    return f"{value:.6g}" if isinstance(value, float) else str(value)
