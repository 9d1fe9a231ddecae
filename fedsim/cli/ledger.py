"""`fedsim account ledger`: what runs that share a ledger have spent together, and what is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedsim.shared_ledger import SharedLedger


def ledger_command(
    file: Annotated[Path, typer.Argument(help="The file that privacy.shared.ledger names.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What the runs that share a ledger have spent together, and what is left."""
    from fedsim.shared_ledger import read_shared

    found = facts(read_shared(file))
    if as_json:
        typer.echo(json.dumps(found, allow_nan=False))
        return
    typer.echo(found["statement"])


def facts(shared: SharedLedger) -> dict[str, Any]:
    """Return what is spent and left, with everything that it is an ε of."""
    from fedsim.accounting.accountants import choose
    from fedsim.accounting.rounding import round_up
    from fedsim.accounting.statement import finite_or_none

    costs = shared.ledger.costs
    accountant = choose([cost for cost, _ in costs], None, shared.relation)[0].name
    spent = shared.budget.spent(shared.ledger)
    releases = [
        {
            "rounds": count,
            "mechanism": f"{cost.sampling.of('units')} with probability "
            f"{cost.sampling.probability:g}, at most {cost.units_per_user} a user, noise "
            f"multiplier {cost.noise_multiplier:g}",
        }
        for cost, count in costs
    ]
    made_by = " and ".join(f"{kind['rounds']} rounds of {kind['mechanism']}" for kind in releases)
    return {
        "unit": "user",
        "relation": shared.relation.value,
        "epsilon": finite_or_none(spent),
        "delta": shared.delta,
        "budget": shared.epsilon,
        "remaining": shared.budget.remaining(shared.ledger),
        "accountant": accountant,
        "releases": releases,
        "statement": f"All {shared.ledger.num_releases} releases together: every user has (ε = "
        f"{round_up(spent, 4):g}, δ = {shared.delta:g})-differential privacy under the "
        f"{shared.relation.phrase} relation, for {made_by or 'no rounds'}, by the {accountant} "
        f"accountant; the budget is {shared.epsilon:g}.",
    }
