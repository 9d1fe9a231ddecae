"""What the numbers of the study of user inference say of the paper's claims, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from experiments.studies.kandpal_2023.user_inference_runs import Row


def findings(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each claim of the paper that the rows can speak to."""
    plain = next(row for row in rows if row.case.kind == "none")
    return [
        _unprotected(plain),
        _statistics(rows),
        *_overfitting(plain),
        *(
            sentence
            for kind, claim in _CLAIMS.items()
            for sentence in _lowered([r for r in rows if r.case.kind == kind], plain, claim)
        ),
        *_learnt(rows, plain),
        *_repetition(rows, plain),
        *_bounded(rows),
        *_canaries([row for row in rows if row.case.kind == "canaries"], plain),
        *_protected([row for row in rows if row.case.kind == "protected canaries"]),
    ]


_CLAIMS = {
    "early": "Stopping early",
    "limit": "Data limits per user",
    "clipping": "Clipping without noise",
    "example-level": "Example-level DP",
    "user-level": "User-level DP",
}


def _unprotected(plain: Row) -> str:
    low, high = plain.measured().auroc_interval
    verdict = "above" if low > 0.5 else "not told from"
    by_samples = ", ".join(
        f"{plain.measured('mean', m).auroc:.3f} with {m}"
        for m in sorted({row.samples for row in plain.group.measured})
    )
    return (
        f"Without protection the attack's AUROC is {plain.measured().auroc:.3f} ({low:.3f} to "
        f"{high:.3f}), {verdict} guessing; by samples a user: {by_samples}."
    )


def _statistics(rows: Sequence[Row]) -> str:
    best = sum(
        row.measured("mean").auroc >= max(row.measured("max").auroc, row.measured("min").auroc)
        for row in rows
    )
    return (
        f"The mean is the best of the three statistics in {best} of {len(rows)} runs (Table 6: "
        "always)."
    )


def _overfitting(plain: Row) -> Iterator[str]:
    states = plain.report.checkpoints
    if plain.report.rank_correlation is not None:
        yield (
            "The rank correlation of the loss gap between held-out and trained users with the "
            f"AUROC over {len(states)} checkpoints is {plain.report.rank_correlation:.2f} "
            "(Figure 3: at least 0.994)."
        )
    if states:
        best = min(states, key=lambda state: state.loss_in)
        yield (
            f"Early stopping: the loss on unseen text of trained users is lowest, "
            f"{best.loss_in:.3f}, after {best.round} of {states[-1].round} rounds, where the AUROC "
            f"is {best.auroc:.3f}; at the end {states[-1].loss_in:.3f} and {states[-1].auroc:.3f}."
        )


def _lowered(rows: Sequence[Row], plain: Row, claim: str) -> Iterator[str]:
    """Say of each run whether its AUROC is below the unprotected one, and what it costs."""
    if not rows:
        return
    described = "; ".join(_against(row, plain) for row in rows)
    lower = sum(row.measured().auroc < plain.measured().auroc for row in rows)
    yield f"{claim}: the AUROC is lower in {lower} of {len(rows)} runs. {described}."


def _learnt(rows: Sequence[Row], plain: Row) -> Iterator[str]:
    """Say how much the runs with noise learnt: what learnt nothing has nothing to betray."""
    noisy = [row for row in rows if row.report.privacy.epsilon is not None]
    if noisy:
        whole = plain.initial_loss - plain.report.final.loss_in
        shares = ", ".join(
            f"{row.case.name}: {(plain.initial_loss - row.report.final.loss_in) / whole:.0%}"
            for row in noisy
        )
        yield (
            f"How much of the unprotected run's gain in loss, from {plain.initial_loss:.3f}, the "
            f"runs with noise reach: {shares}. A low AUROC is worth little where little was learnt."
        )


def _against(row: Row, plain: Row) -> str:
    area, loss = row.measured().auroc, row.report.final.loss_in
    return (
        f"{row.case.name}: AUROC {area:.3f} ({area - plain.measured().auroc:+.3f}), loss "
        f"{loss:.3f} ({loss - plain.report.final.loss_in:+.3f})"
    )


def _repetition(rows: Sequence[Row], plain: Row) -> Iterator[str]:
    for row in rows:
        if row.case.kind == "repetition":
            more, less = row.measured().auroc, plain.measured().auroc
            verdict = "lowers" if less < more else "does not lower"
            yield (
                f"Removing the repetitions within users {verdict} the AUROC: {more:.3f} with "
                f"them, {less:.3f} without (Table 5: 0.657 and 0.591)."
            )


def _bounded(rows: Sequence[Row]) -> Iterator[str]:
    kept = [row for row in rows if row.report.bound.auroc is not None]
    if kept:
        above = [r.case.name for r in kept if r.measured().auroc > (r.report.bound.auroc or 0.0)]
        verdict = f"above it: {', '.join(above)}" if above else "below it in every run"
        yield (
            f"{len(kept)} runs have a finite ε of a user, and with it a bound on the AUROC that "
            f"any attack reaches on average; what the attack reached is {verdict}."
        )


def _canaries(rows: Sequence[Row], plain: Row) -> Iterator[str]:
    if rows:
        areas = [row.measured().auroc for row in rows]
        described = "; ".join(
            f"{r.case.name.split(', ')[1]}: {r.measured().auroc:.3f}" for r in rows
        )
        rising = all(a <= b for a, b in pairwise(areas))
        verdict = "rises with l" if len(rows) > 1 and rising else "does not rise steadily with l"
        end = "" if len(rows) < 2 else f"; it {verdict}"
        yield (
            f"AUROC on canaries ({rows[0].group.users_in} + {rows[0].group.users_out} of them) by "
            f"the tokens that their examples share: {described}, on real users "
            f"{plain.measured().auroc:.3f}{end}."
        )


def _protected(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        measured = row.measured()
        low, high = measured.auroc_interval
        verdict = "reaches down to guessing" if low <= 0.5 else "stays above guessing"
        yield (
            f"{row.case.name}: AUROC {measured.auroc:.3f} ({low:.3f} to {high:.3f}), which "
            f"{verdict}."
        )
