"""Ganesh et al. 2025, arXiv:2503.03622: bound and train on text that belongs to several people.

A scene of a play is like an e-mail thread: each speech belongs to all speakers of the scene. Every
second speaker's own speeches are left out, so half of the owners are listeners without own text. A
rule keeps at most K examples of each owner, speaker or listener. The promise is then for every
owner, and the ownership is public (fixed graph). The table *What the rules keep* has each rule's
examples, and the noise for the promise at one expected batch.

The naïve run counts a text only for its speaker. It may train on the same texts, with the same K.
Its ε is for speakers: **no ε covers listeners** there, as each of its numbers states.

The attack is on listeners. Its score is the mean, over a listener's texts, of the log-likelihood
under the trained model minus that under the starting model. Members are listeners with some texts
that may be trained on; for the others, no text that they co-own is trained on. The control attacks
the same listeners and texts with the run of the other seed, which held out other listeners. The
control's distance from 0.5 therefore comes from the texts, not from training on them. A fixed graph
does not bound the AUROC: it compares texts with blank texts, not with a listener's absence. If the
naïve run without noise is at chance too, the reason is too little training, not ε.

Losses are measured on speeches that no run trained on. Losses and attacks are computed on private
text; no guarantee covers them.

The paper finds that the greedy rule is competitive with its variants in most settings, and that K
trades discarded text against noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.attacks.measuring import RESAMPLES
from fedsim.experiments.studies.common.output import (
    Form,
    Result,
    Table,
    legend,
    number,
    panels,
    steps,
    study_of_runs,
)
from fedsim.experiments.studies.ganesh_2025.co_owned_runs import (
    BOUNDED,
    CLIP,
    FULL,
    NAIVE,
    QUICK,
    RULES,
    UNPROTECTED,
    Case,
    Kept,
    Outcome,
    Row,
    Scale,
    attacked,
    cases,
    count,
    finished,
    loss,
)
from fedsim.experiments.studies.ganesh_2025.scenes import KNOWN, World, world
from fedsim.noise.tolerance import ROUNDING_TOLERANCE
from fedsim.report.style import MUTED, colour
from fedsim.report.wording import TOGETHER, epsilon_text, terms_text
from fedsim.utils.machine import machine

TITLE = "Text that belongs to several people: what is kept, what it costs, and who is covered"
NOT_COVERED = "no ε covers listeners"
LABELS = {NAIVE: f"naïve: {NOT_COVERED}", UNPROTECTED: f"{UNPROTECTED}: no ε covers anybody"}


@study_of_runs("co-owned", TITLE, __doc__)
def run(folder: Path, quick: bool) -> Result:
    """Count, train and attack, with runs and texts in `folder`."""
    scale = QUICK if quick else FULL
    worlds: list[World] = []
    results: dict[Case, dict[float, list[Outcome]]] = {}
    folder.mkdir(exist_ok=True)
    for seed in scale.seeds:
        worlds.append(world(seed, folder, scale.model(), scale.scenes, scale.held_out))
        for case, rate in steps(cases(scale), f"co-owned, seed {seed}"):
            outcome = finished(worlds[-1], case, rate, scale, folder)
            results.setdefault(case, {}).setdefault(rate, []).append(outcome)
    rows = [attacked(worlds, case, tried) for case, tried in results.items()]
    counts = list(count(worlds[0], scale))
    seconds = sum(o.seconds for tried in results.values() for os in tried.values() for o in os)
    return Result(
        settings=_settings(scale, worlds, rows, seconds),
        notes=notes(rows, counts),
        table=Table.of([_shown(row) for row in rows], _COLUMNS),
        records=[record for row in rows for record in _records(row, scale)],
        figure=draw(rows, counts, scale),
        more={"bounding.csv": [_counted(kept, scale) for kept in counts]},
        further={"What the rules keep": _rules(counts, scale)},
    )


_COLUMNS: dict[str, tuple[str, Form]] = {
    "texts kept by": ("rule", "s"),
    "K": ("K", "s"),
    "ε": ("epsilon", "s"),
    "noise multiplier": ("noise_multiplier", "s"),
    "noise on the mean": ("noise", "s"),
    "pool": ("pool", "s"),
    "one listener's most": ("listener", "s"),
    "rate": ("rate", "g"),
    "held-out loss, by seed": ("losses", "s"),
    "log ratio, members − others": ("gap", "+.3f"),
    "AUROC": ("auroc", ".3f"),
    "95 %, all seeds'": ("interval", "s"),
    "control": ("control", "s"),
}


def _shown(row: Row) -> dict[str, object]:
    case, first = row.case, row.outcomes[0].privacy
    of = "speakers" if case.rule == NAIVE else "every owner"
    controls = [attack.auroc for attack in row.controls]
    return {
        "rule": _label(case.rule),
        "K": str(case.group_size or "all"),
        "epsilon": f"{epsilon_text(first.epsilon)} of {of}" if first.epsilon else "none",
        "noise_multiplier": _each([o.privacy.noise_multiplier or 0.0 for o in row.outcomes]),
        "noise": _each([o.privacy.noise_stddev or 0.0 for o in row.outcomes]),
        "pool": ", ".join(str(o.pool) for o in row.outcomes),
        "listener": ", ".join(str(o.listener) for o in row.outcomes),
        "rate": row.rate,
        "losses": ", ".join(f"{o.loss:.4f}" for o in row.outcomes),
        "gap": float(np.mean([attack.gap for attack in row.attacks])),
        "auroc": _auroc(row),
        "interval": "{:.3f} to {:.3f}".format(*_interval(row)),
        "control": f"{np.mean(controls):.3f}" if controls else "–",
    }


def _label(rule: str) -> str:
    return LABELS.get(rule, rule)


def _each(values: Sequence[float]) -> str:
    return ", ".join(number(value) for value in values)


def _auroc(row: Row) -> float:
    return float(np.mean([attack.auroc for attack in row.attacks]))


def _interval(row: Row) -> tuple[float, float]:
    """Return the minimum and maximum of the seeds' intervals; wider than an interval of a mean."""
    return min(a.low for a in row.attacks), max(a.high for a in row.attacks)


def _records(row: Row, scale: Scale) -> list[dict[str, object]]:
    """Return one row of the CSV per seed."""
    controls: list[float | None] = [attack.auroc for attack in row.controls]
    return [
        {
            "rule": _label(row.case.rule),
            "group_size": row.case.group_size,
            "seed": seed,
            "learning_rate": row.rate,
            "epsilon": outcome.privacy.epsilon,
            "terms": terms_text(outcome.privacy),
            "noise_multiplier": outcome.privacy.noise_multiplier,
            "noise_stddev": outcome.privacy.noise_stddev,
            "pool": outcome.pool,
            "listener_most": outcome.listener,
            "listener_repriced_epsilon": outcome.repriced,
            "loss": outcome.loss,
            "log_ratio_gap": attack.gap,
            "auroc": attack.auroc,
            "auroc_low": attack.low,
            "auroc_high": attack.high,
            "auroc_control": control,
        }
        for seed, outcome, attack, control in zip(
            scale.seeds,
            row.outcomes,
            row.attacks,
            controls or [None] * len(row.outcomes),
            strict=True,
        )
    ]


def _counted(kept: Kept, scale: Scale) -> dict[str, object]:
    return {
        "group_size": kept.group_size,
        "rule": _label(kept.rule),
        "examples": kept.examples,
        "share_of_the_most": kept.share,
        "listener_most": kept.listener,
        **{f"noise_multiplier_{e:g}": kept.noise.get(e) for e in scale.epsilons},
        **{f"noise_on_the_mean_{e:g}": _on_the_mean(kept, e, scale) for e in scale.epsilons},
    }


def _on_the_mean(kept: Kept, epsilon: float, scale: Scale) -> float | None:
    """Return the noise's standard deviation on the mean, for a normalised clip (norm at most 1)."""
    if epsilon not in kept.noise:
        return None
    return kept.noise[epsilon] * (1 + ROUNDING_TOLERANCE) / scale.batch_size


def _rules(counts: Sequence[Kept], scale: Scale) -> Table:
    def cell(value: object) -> str:
        return number(value) if isinstance(value, float) else "–"

    columns: dict[str, tuple[str, Form]] = {
        "K": ("group_size", "d"),
        "rule": ("rule", "s"),
        "kept": ("examples", ",d"),
        "of the most": ("share_of_the_most", ".1%"),
        "one listener's most": ("listener_most", "d"),
    }
    for epsilon in scale.epsilons:
        columns[f"σ at ε = {epsilon:g}"] = (f"noise_multiplier_{epsilon:g}", cell)
        columns[f"noise on the mean at ε = {epsilon:g}"] = (f"noise_on_the_mean_{epsilon:g}", cell)
    return Table.of([_counted(kept, scale) for kept in counts], columns)


def notes(rows: Sequence[Row], counts: Sequence[Kept]) -> list[str]:
    """Return sentences on each rule's kept examples, and on each comparison over the cells."""
    found = {row.case: row for row in rows}
    naive = [row for row in rows if row.case.rule == NAIVE and row.case.epsilon is not None]
    said = [
        f"{rule}: keeps {min(shares):.1%} to {max(shares):.1%} of the largest possible number."
        for rule in RULES
        if (shares := [kept.share for kept in counts if kept.rule == rule])
    ]
    first, other = BOUNDED
    for mine, against in ((first, other), (first, NAIVE)):
        gaps = [
            (row.loss - than.loss, [a.loss - b.loss for a, b in _pairs(row, than)])
            for row in rows
            if row.case.rule == mine
            and (than := found[Case(against, row.case.group_size, row.case.epsilon)])
        ]
        won = sum(mean < 0.0 for mean, _ in gaps)
        each = [gap for _, seeds in gaps for gap in seeds]
        said.append(
            f"{mine} against {_label(against)}: a smaller mean loss in {won} of {len(gaps)} "
            f"cells; differences by seed from {min(each):+.4f} to {max(each):+.4f} nats."
        )
    above = {
        "with an ε for every owner": [r for r in rows if r.case.rule in BOUNDED],
        f"that count only the speaker ({NOT_COVERED})": naive,
    }
    for words, some in above.items():
        away = sum(low > 0.5 for low, _ in map(_interval, some))
        said.append(
            f"Attack on listeners, runs {words}: the intervals of all seeds lie above 0.5 in "
            f"{away} of {len(some)} runs."
        )
    prices = [o.repriced for row in naive for o in row.outcomes if o.repriced is not None]
    if prices:
        said.append(
            f"The noise of the naïve runs would give the listener who co-owns most of the pool ε = "
            f"{epsilon_text(min(prices))} to {epsilon_text(max(prices))}, had the runs counted "
            f"listeners (same δ, fixed graph, same coins). They promise none of these: "
            f"{NOT_COVERED}."
        )
    return said


def _pairs(row: Row, than: Row) -> list[tuple[Outcome, Outcome]]:
    return list(zip(row.outcomes, than.outcomes, strict=True))


def _settings(
    scale: Scale, worlds: Sequence[World], rows: Sequence[Row], seconds: float
) -> list[str]:
    where = machine()
    promised = [r for r in rows if r.outcomes[0].privacy.epsilon is not None]
    terms = {
        f"{'naïve, ' + NOT_COVERED if r.case.rule == NAIVE else 'bounded'}: "
        f"{terms_text(r.outcomes[0].privacy)}"
        for r in promised
    }
    starts = ", ".join(f"{loss(world, world.co_owned.model):.4f}" for world in worlds)
    sides = [world.listeners() for world in worlds]
    store = worlds[0].co_owned.store
    owners = store.graph.num_owners if store.graph is not None else 0
    return [
        *sorted(terms),
        TOGETHER,
        f"{store.num_users} speakers with {store.num_examples:,} texts, cut at 32 tokens, and "
        f"{owners - store.num_users} listeners who wrote none of them. A coin holds out "
        f"{scale.held_out:.0%} of all owners, with all texts that they co-own. By seed, "
        f"{', '.join(f'{len(world.train):,}' for world in worlds)} texts may be trained on. "
        f"{worlds[0].scored.num_examples:,} other speeches are scored.",
        f"The table *What the rules keep* is for the split of seed {scale.seeds[0]}. Its largest "
        "possible number is the linear program's optimum. The naïve run keeps more, since it "
        "counts no listener.",
        f"Runs with clip: ELS, {scale.rounds} rounds of {scale.batch_size} expected examples, "
        f"normalised clip at {CLIP:g} (no gradient is longer than 1). SGD trains gains and offsets "
        f"of tiny-gpt's norms at learning rate {' or '.join(f'{r:g}' for r in scale.rates)}, or, "
        "without noise, four times the largest. The rate with the smallest mean loss is shown; no "
        "ε here accounts for that choice.",
        f"{UNPROTECTED}: the same texts, {scale.unprotected[0]} rounds of {scale.unprotected[1]} "
        "expected examples, Adam at 0.003, all parameters. It shows what the attack finds without "
        "protection.",
        f"Held-out loss before training, by seed: {starts}.",
        "Listeners attacked, members + others, by seed: "
        f"{', '.join(f'{len(inside)} + {len(outside)}' for inside, outside in sides)}; at most "
        f"{KNOWN} texts of each; for members, texts that were trained on. An interval is from "
        f"{RESAMPLES} bootstrap resamples of listeners, with the least and largest bound of all "
        "seeds. Listeners of a scene share its texts, so intervals are narrower than for "
        "independent people.",
        f"Made on {where['processor']}, {where['cpus']} CPUs, on {where['date']}; seeds "
        f"{', '.join(map(str, scale.seeds))}; {seconds:,.0f} s of rounds.",
    ]


def draw(rows: Sequence[Row], counts: Sequence[Kept], scale: Scale) -> Figure:
    """Draw kept examples, noise, losses and attacks against K."""
    epsilons = scale.epsilons
    heads = [["examples kept", f"noise on the mean, ε = {epsilons[-1]:g}"]]
    heads += [[f"{what}, ε = {e:g}" for e in epsilons] for what in ("held-out loss", "AUROC")]
    width = max(2, len(epsilons))
    heads = [[*row, *[""] * (width - len(row))] for row in heads]
    promised = [r.outcomes[0].privacy for r in rows if r.outcomes[0].privacy.epsilon is not None]
    note = (
        f"Naïve: {NOT_COVERED}, its ε is for speakers. Bars: the losses of all seeds, and the "
        "least and largest bound of their bootstrap intervals. "
    )
    note += "; ".join(sorted({terms_text(privacy) for privacy in promised}))
    figure, axes = panels((10.0, 8.4), TITLE, note, heads, x="K", y="", share=(False, False))
    grid = [axes[i : i + width] for i in range(0, len(axes), width)]
    for index, rule in enumerate((*RULES, NAIVE)):
        mine = [kept for kept in counts if kept.rule == rule]
        style: dict[str, Any] = {
            "color": _hue(rule, index),
            "ls": _line(rule),
            "marker": "o",
            "ms": 3,
        }
        sizes = [kept.group_size for kept in mine]
        grid[0][0].plot(sizes, [kept.examples for kept in mine], label=_label(rule), **style)
        noise = [_on_the_mean(kept, epsilons[-1], scale) or np.nan for kept in mine]
        grid[0][1].plot(sizes, noise, **style)
    for column, epsilon in enumerate(epsilons):
        for index, rule in enumerate((*RULES, NAIVE)):
            mine_rows = [r for r in rows if (r.case.rule, r.case.epsilon) == (rule, epsilon)]
            hue, shift = _hue(rule, index), 1.0 + 0.02 * (index - 3)
            _bars(grid[1][column], mine_rows, lambda r: r.loss, _losses, hue=hue, shift=shift)
            _bars(grid[2][column], mine_rows, _auroc, _interval, hue=hue, shift=shift)
        grid[2][column].axhline(0.5, color=MUTED, linestyle="--", linewidth=1.0)
    for panel in axes:
        panel.set_xscale("log", base=2)
        panel.set_xticks(scale.sizes, [str(size) for size in scale.sizes])
        panel.set_visible(bool(panel.get_title(loc="left")))
    for panel in grid[0]:
        panel.set_yscale("log")
    legend(figure, grid[0][0])
    return figure


def _hue(rule: str, index: int) -> str:
    return MUTED if rule == NAIVE else colour(index)


def _line(rule: str) -> str:
    return "--" if rule == NAIVE else "-"


def _losses(row: Row) -> tuple[float, float]:
    losses = [outcome.loss for outcome in row.outcomes]
    return min(losses), max(losses)


def _bars(
    axes: Axes,
    rows: Sequence[Row],
    value: Callable[[Row], float],
    bounds: Callable[[Row], tuple[float, float]],
    *,
    hue: str,
    shift: float,
) -> None:
    if not rows:
        return
    middle = [value(row) for row in rows]
    ends = [bounds(row) for row in rows]
    errors = [
        [mid - low for mid, (low, _) in zip(middle, ends, strict=True)],
        [high - mid for mid, (_, high) in zip(middle, ends, strict=True)],
    ]
    line = _line(rows[0].case.rule)
    sizes = [(row.case.group_size or 0) * shift for row in rows]
    axes.errorbar(sizes, middle, yerr=errors, fmt="o", ls=line, color=hue, ms=3.5, capsize=2)
