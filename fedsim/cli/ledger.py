"""`fedsim account ledger`, `compose` and `verify`: costs of several runs, and of one model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsim.cli.output import Json
from fedsim.errors import ConfigError

if TYPE_CHECKING:
    from fedsim.runner.shared_ledger import SharedLedger


def ledger_command(
    file: Annotated[Path, typer.Argument(help="The ledger file that privacy.shared.ledger names.")],
    *,
    as_json: Json = False,
) -> None:
    """Show the (ε, δ) of all runs that share a ledger, and the shares spent and left."""
    from fedsim.runner.shared_ledger import read_shared

    facts = ledger_facts(read_shared(file))
    if as_json:
        typer.echo(json.dumps(facts, allow_nan=False))
        return
    for one in facts["releases"]:
        spent = f"{100.0 * one['spent_share']:.4g} % of the budget"
        typer.echo(f"{one['rounds']:>9,} releases, {spent}: {one['mechanism']}")
    typer.echo(facts["statement"])


def ledger_facts(shared: SharedLedger) -> dict[str, Any]:
    """Return the budget of a shared ledger, the shares spent and left, and the statement."""
    from fedsim.accounting.privacy_filter import CITATION
    from fedsim.accounting.rounding import text_up
    from fedsim.accounting.statement import mechanism_text

    costs, unit = shared.ledger.costs, shared.relation.unit

    def share(releases: Any) -> float:  # noqa: ANN401
        spent = shared.spent(releases) / shared.budget if shared.budget > 0.0 else 1.0
        return min(spent, 1e9)

    spent = share(costs)
    return {
        "unit": unit,
        "relation": shared.relation.value,
        "epsilon": shared.epsilon,
        "delta": shared.delta,
        "accountant": "renyi-filter",
        "order": shared.order,
        "spent_share": spent,
        "left_share": max(0.0, 1.0 - spent),
        "releases": [
            {
                "rounds": count,
                "mechanism": mechanism_text(cost, "units", count),
                "spent_share": share([(cost, count)]),
            }
            for cost, count in costs
        ],
        "statement": f"All {shared.ledger.num_releases:,} releases, and all later ones, together "
        f"give every {unit} (ε = {text_up(shared.epsilon)}, δ = {text_up(shared.delta)})-"
        f"differential privacy under the {shared.relation.phrase} relation. A privacy filter "
        f"({CITATION}; order {shared.order:g}) makes this hold even if a run was chosen after "
        f"looking at earlier runs. {text_up(100.0 * spent, 4)} % of the budget is spent. Coins and "
        "noise are secret.",
    }


def compose_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    *,
    delta: Annotated[
        float | None,
        typer.Option(help="δ of the total (default: the runs' δ, if they have the same)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the total cost of runs on the same people, if all runs were fixed in advance.

    If you choose a run's settings after looking at another run, give both a shared ledger
    (`[privacy.shared]`) before the first begins.
    """
    from fedsim.accounting.accountants import epsilon_of_composition
    from fedsim.accounting.events import merged
    from fedsim.accounting.promise import NAME, read_promise, releases_of
    from fedsim.accounting.statement import PrivacyTerms, finite_or_none
    from fedsim.sampling import Relation

    promises = []
    for run in runs:
        inside = [run / name for name in ("model", "adapter") if (run / name / NAME).exists()]
        promises.append(read_promise(inside[0] if inside else run))
        if promises[-1]["epsilon"] is None or promises[-1]["hypothetical"]:
            raise ConfigError(f"{run}: has no guarantee to add up")
    deltas, units, relations = (
        {one[key] for one in promises} for key in ("delta", "unit", "relation")
    )
    if len(units) > 1 or len(relations) > 1:
        raise ConfigError(
            f"account compose: units {units}, relations {relations}: give runs with one of each"
        )
    if delta is None and len(deltas) > 1:
        raise ConfigError(f"--delta: the runs have {sorted(deltas)}; give one")
    at = min(deltas) if delta is None else delta
    if not 0.0 < at < 1.0:
        raise ConfigError(f"--delta = {at}: give a number in (0, 1)")
    relation = Relation(relations.pop())
    costs = merged([cost for one in promises for cost in releases_of(one)])
    sampled = {one["sampled"] for one in promises}
    terms = PrivacyTerms.of(
        costs[0][0],
        sampled.pop() if len(sampled) == 1 else "units",
        others=costs[1:],
        rounds=sum(rounds for _, rounds in costs),
        delta=at,
        epsilon=epsilon_of_composition(costs, at, None, relation),
        relation=relation,
        noise="seeded" if any(one["noise"] == "seeded" for one in promises) else "secure",
        unit=units.pop(),
    )
    if as_json:
        facts = {"epsilon": finite_or_none(terms.epsilon), **terms.to_json()}
        typer.echo(json.dumps({**facts, "runs": len(runs), "statement": terms.sentence()}))
        return
    typer.echo(f"{len(runs)} runs, if all were fixed in advance. {terms.sentence()}")


def verify_command(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of a model or adapter that fedsim wrote, or its privacy.json."),
    ],
    *,
    as_json: Json = False,
) -> None:
    """Recompute a model's ε from its privacy.json and check the digests of its weights."""
    from fedsim.accounting.promise import NAME, origin, verify

    content = verify(folder.parent if folder.name == NAME else folder)
    if as_json:
        typer.echo(json.dumps(content, allow_nan=False))
        return
    typer.echo(content["statement"])
    typer.echo(origin(content))
    if content["epsilon"] is not None:
        typer.echo("The file's releases cost this ε; the file cannot show how training went.")
