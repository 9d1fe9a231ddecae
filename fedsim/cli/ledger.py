"""`fedsim account ledger`: what runs that share a ledger are promised, and what is spent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedsim.cli.output import Json
from fedsim.errors import ConfigError
from fedsim.utils.terminal import table_console

if TYPE_CHECKING:
    from fedsim.accounting.events import Composition
    from fedsim.accounting.privacy_filter import RenyiFilter
    from fedsim.runner.shared_ledger import SharedLedger


def ledger_command(
    file: Annotated[Path, typer.Argument(help="The ledger file that privacy.shared.ledger names.")],
    *,
    as_json: Json = False,
) -> None:
    """Show the (ε, δ) of all runs that share a ledger, by which rule, and how much is spent."""
    from fedsim.runner.shared_ledger import read_shared

    found = facts(read_shared(file))
    if as_json:
        typer.echo(json.dumps(found, allow_nan=False))
        return
    if found["releases"]:
        table_console().print(_table(found["releases"]))
    typer.echo(found["statement"])


def _table(releases: list[dict[str, Any]]) -> Table:
    from fedsim.accounting.rounding import text_up

    table = Table("releases", "mechanism", "of the budget", box=None)
    for one in releases:
        share = one["spent_share"]
        spent = "" if share is None else f"{text_up(100.0 * share, 4)} %"
        table.add_row(f"{one['rounds']:,}", one["mechanism"], spent)
    return table


def verify_command(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of a model or adapter that fedsim wrote, or its privacy.json."),
    ],
    *,
    as_json: Json = False,
) -> None:
    """Recompute a model's ε from its privacy.json; refuse a file that was edited."""
    from fedsim.accounting.promise import NAME, origin, verify

    content = verify(folder.parent if folder.name == NAME else folder)
    if as_json:
        typer.echo(json.dumps(content, allow_nan=False))
        return
    typer.echo(content["statement"])
    typer.echo(origin(content))
    if content["epsilon"] is not None:
        typer.echo(
            "The releases that the file lists cost that. How training was done it cannot show."
        )


def facts(shared: SharedLedger) -> dict[str, Any]:
    """Return what is promised and spent, and which rule stands behind it.

    `epsilon` is None where nothing is promised: in a ledger that holds more than its filter pays
    for. `if_fixed_in_advance` is no promise, unless everything was: it shows what the
    filter costs.
    """
    from fedsim.accounting.statement import finite_or_none, noise_sentence

    made, unit = shared.ledger.costs, shared.relation.unit
    rule = shared.filter
    by_renyi = None if rule is None else finite_or_none(rule.converted(made))
    found: dict[str, Any] = {
        "unit": unit,
        "relation": shared.relation.value,
        "delta": shared.delta,
        "budget": shared.epsilon,
        "releases": [
            {**kind, "spent_share": None if rule is None else _share(rule, [one])}
            for one, kind in zip(made, _listed(made, unit), strict=True)
        ],
        "registered": _listed(shared.registered, unit),
        "if_fixed_in_advance": {
            "epsilon": finite_or_none(tight) if (tight := shared.tight(made)) is not None else None,
            "accountant": _accountant(shared, made),
            "epsilon_by_renyi": by_renyi,
        },
    }
    found |= _by_registration(shared) if rule is None else _by_filter(shared, rule)
    seeded = any(item.release.startswith("seeded") for item in shared.ledger.items)
    drawn = noise_sentence(("seeded" if seeded else "secure") if shared.ledger.items else None)
    return {**found, "statement": " ".join([*found["statement"], drawn]).strip()}


def _by_filter(shared: SharedLedger, rule: RenyiFilter) -> dict[str, Any]:
    from fedsim.accounting.privacy_filter import CITATION
    from fedsim.accounting.rounding import text_up

    made, unit = shared.ledger.costs, shared.relation.unit
    keeps, delta = shared.keeps_budget, text_up(shared.delta)
    share = _share(rule, made)
    under = f"under the {shared.relation.phrase} relation"
    said = [
        f"All {shared.ledger.num_releases} releases, and those to come, each run chosen after "
        f"looking at those before: every {unit} has (ε = {text_up(shared.epsilon)}, δ = {delta})-"
        f"differential privacy {under}, for {_words(made, unit)}, by a privacy filter ({CITATION}; "
        f"order {rule.order:g}), of which {text_up(100.0 * share, 4)} % is spent."
        if keeps
        else f"The {shared.ledger.num_releases} releases are more than the filter of this ledger "
        f"pays for: ε = {text_up(shared.epsilon)} at δ = {delta} {under} is not proved for runs "
        f"chosen after looking at earlier ones ({_words(made, unit)})."
    ]
    alone = shared.tight(shared.registered) if shared.as_registered and made else None
    if alone is not None:
        said.append(
            "All of them were registered before the first: those registered, by themselves, have "
            f"(ε = {text_up(alone, 4)}, δ = {delta}) {under}, for "
            f"{_words(shared.registered, unit)}, by the {_accountant(shared, shared.registered)} "
            "accountant (tight composition of what was fixed in advance)."
        )
    tight = shared.tight(made)
    if made and tight is not None:
        said.append(
            "Had what is released all been fixed in advance, it would have ε = "
            f"{text_up(tight, 4)} by tight composition (the {_accountant(shared, made)} "
            f"accountant) and ε = {text_up(rule.converted(made), 4)} by the filter's "
            f"divergences, at δ = {delta} {under}: the difference is what the filter "
            "costs, most while little is spent, since its order is for a whole budget."
        )
    return {
        "basis": "filter",
        "epsilon": shared.epsilon if keeps else None,
        "accountant": "renyi-filter",
        "order": rule.order,
        "spent_share": share,
        "registered_alone": alone,
        "statement": said,
    }


def _share(rule: RenyiFilter, costs: Composition) -> float:
    spent = rule.spent(costs) / rule.budget if rule.budget > 0.0 else 1.0
    return min(spent, sys.float_info.max)


def _by_registration(shared: SharedLedger) -> dict[str, Any]:
    from fedsim.accounting.rounding import text_up
    from fedsim.accounting.statement import finite_or_none

    accountant = _accountant(shared, shared.registered)
    epsilon = shared.tight(shared.registered) or 0.0
    planned = sum(rounds for _, rounds in shared.registered)
    done, unit = sum(rounds for _, rounds in shared.ledger.costs), shared.relation.unit
    keeps = shared.keeps_budget
    return {
        "basis": "fixed in advance",
        "epsilon": finite_or_none(epsilon) if keeps else None,
        "accountant": accountant,
        "order": None,
        "spent_share": done / planned if planned else 1.0,
        "registered_alone": finite_or_none(epsilon),
        "statement": [
            f"All {done} releases, and the {planned - done} still registered: every {unit} has "
            f"(ε = {text_up(epsilon, 4)}, δ = {text_up(shared.delta)})-differential privacy under "
            f"the {shared.relation.phrase} relation, for {_words(shared.registered, unit)}, by the "
            f"{accountant} accountant (tight composition of what was fixed before the first "
            f"release); the budget is {text_up(shared.epsilon)}. It does not suffice for a filter: "
            "no other release is made."
            if keeps
            else f"The {done} releases are not those that were registered before the first: "
            f"ε = {text_up(shared.epsilon)} at δ = {text_up(shared.delta)} under the "
            f"{shared.relation.phrase} relation is not proved for them "
            f"({_words(shared.ledger.costs, unit)})."
        ],
    }


def _accountant(shared: SharedLedger, costs: Composition) -> str | None:
    from fedsim.accounting.accountants import choose

    try:
        return choose([cost for cost, _ in costs], None, shared.relation)[0].name
    except ConfigError:
        return None


def _listed(costs: Composition, unit: str) -> list[dict[str, Any]]:
    share = "an owner" if unit == "owner" else "a user"
    return [
        {
            "rounds": count,
            "mechanism": f"{cost.sampling.in_words('units')}"
            f"{'' if cost.search is None else f' in {cost.search.in_words()}'} with "
            f"probability {cost.sampling.probability:g}, at most {cost.units_per_user} {share}, "
            f"noise multiplier {cost.noise_multiplier:g}",
        }
        for cost, count in costs
    ]


def _words(costs: Composition, unit: str) -> str:
    from fedsim.sampling import rounds_text

    kinds = [
        f"{rounds_text(kind['rounds'])} of {kind['mechanism']}" for kind in _listed(costs, unit)
    ]
    return " and ".join(kinds) or "no rounds"
