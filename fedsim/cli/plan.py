"""`fedsim plan`: ULS or ELS, with which sizes, clip norm and noise, before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.account import delta_of, warn_of_delta
from fedsim.cli.output import Json, Overrides
from fedsim.errors import ConfigError
from fedsim.utils.terminal import status_when_slow

if TYPE_CHECKING:
    from fedsim.config import Config
    from fedsim.planner.numbers import Numbers

_FROM_NUMBERS = ("users", "median_size", "max_size", "epsilon", "delta", "rounds")


def plan_command(
    *,
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A run's config; without one, give --budget and the options for that case."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Expected example gradients per round (default: those of the config)."),
    ] = None,
    overrides: Overrides = None,
    private_norms: Annotated[
        float | None,
        typer.Option(
            metavar="EPSILON",
            help="Spend this ε, out of privacy.epsilon, on clip norms with differential privacy.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The config to write (default: CONFIG.plan.toml beside CONFIG)."),
    ] = None,
    users: Annotated[int | None, typer.Option(help="Without CONFIG: number of users.")] = None,
    median_size: Annotated[
        int | None, typer.Option(help="Without CONFIG: number of examples of the median user.")
    ] = None,
    max_size: Annotated[
        int | None,
        typer.Option(help="Without CONFIG: examples of the largest user (default: --median-size)."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Without CONFIG: ε of the guarantee.")
    ] = None,
    delta: Annotated[
        str | None,
        typer.Option(help="Without CONFIG: δ of the guarantee, or n^-1.1, n being --users."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Without CONFIG: number of rounds.")] = None,
    gradient_diversity: Annotated[
        float | None,
        typer.Option(
            help="Without CONFIG: 1 minus the cosine of two gradients of a user, in [0, 1]. Adds a "
            "case to the two that are always shown, 0 (alike) and 1 (diverse)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Recommend user-level or example-level sampling, with sizes and noise, before training.

    With CONFIG it also writes a config for the recommendation.
    """
    power = None if delta is None else delta_of(delta, users)
    numbers = dict(
        zip(_FROM_NUMBERS, (users, median_size, max_size, epsilon, power, rounds), strict=True)
    )
    if config is None:
        _refuse("--set", overrides, "needs CONFIG")
        _refuse("--out", out, "needs CONFIG")
        _refuse("--private-norms", private_norms, "needs CONFIG: numbers have no gradients")
        _from_numbers(_numbers(numbers, budget), gradient_diversity, as_json)
        return
    for name, value in {**numbers, "gradient_diversity": gradient_diversity}.items():
        _refuse(f"--{name.replace('_', '-')}", value, "not with CONFIG, which says it itself")
    from fedsim.cli.plan_tables import print_owners, print_plan
    from fedsim.config import load_config
    from fedsim.materials import materials_of, new_data_seed
    from fedsim.planner.answer import of_data, of_owners, sentences
    from fedsim.planner.compare_strategies import compare_strategies
    from fedsim.planner.config_file import about_clip_norm, check_target, write_config
    from fedsim.planner.owners import plan_owners
    from fedsim.runner.summary import delta_warnings
    from fedsim.strategy import relation_of

    loaded = load_config(config, overrides or [])
    if loaded.data.co_owned:
        _refuse("--private-norms", private_norms, "texts with several owners are planned by counts")
    target = out or config.with_name(f"{config.stem}.plan.toml")
    replaced = check_target(target)
    with status_when_slow("planning: gradients and noise"):
        materials = materials_of(loaded, new_data_seed(loaded))
        if loaded.data.co_owned:
            owners = plan_owners(loaded, materials, budget)
            answer, show = of_owners(owners), print_owners
            chosen, reasons = owners.config, (owners.reason, *owners.notes)
        else:
            comparison = compare_strategies(
                loaded, materials, budget=budget, private_norms=private_norms
            )
            answer, show = of_data(comparison), print_plan
            chosen = comparison.chosen.config
            clipped = about_clip_norm(chosen)
            reasons = (comparison.recommendation.reason, *sentences(comparison), clipped)
    if private_norms is None or loaded.privacy.declared_num_users is not None:
        sampled = "example" if loaded.strategy.batch_size is not None else "user"
        for said in delta_warnings(loaded, relation_of(loaded), materials.num_protected, sampled):
            typer.echo(said, err=True)
    if key := _undeclared(chosen):
        typer.echo(f"privacy.{key}: {_OTHERS}", err=True)
    write_config(target, chosen, config.name, reasons)
    if as_json:
        typer.echo(json.dumps({**answer, "config": str(target)}, allow_nan=False))
        return
    show(answer)
    former = ", in the place of a former plan" if replaced else ""
    typer.echo(f"Config: {target}{former}. Run it: fedsim run {target}")


_OTHERS = (
    "is not declared. With secure noise a run holds out other users than this plan did, and as "
    "many by chance: its sampling rate and σ can differ. Declared, both are of that number."
)


def _undeclared(config: Config) -> str:
    """Return the key of the size from which rate and noise follow, where each run has another."""
    if not config.data.held_out_users or config.privacy.noise != "secure":
        return ""
    key = f"declared_num_{'users' if config.strategy.name == 'uls' else 'examples'}"
    return key if getattr(config.privacy, key) is None else ""


def _from_numbers(numbers: Numbers, diversity: float | None, as_json: bool) -> None:
    from fedsim.cli.plan_tables import print_supposed
    from fedsim.planner.answer import of_numbers
    from fedsim.planner.numbers import ALIKE, DIVERSE, scenario

    cases = sorted({ALIKE, DIVERSE} | ({diversity} if diversity is not None else set()))
    with status_when_slow("planning: noise"):
        answer = of_numbers(numbers, [scenario(numbers, case) for case in cases])
    warn_of_delta(numbers.delta, numbers.users)
    if as_json:
        typer.echo(json.dumps(answer, allow_nan=False))
    else:
        print_supposed(answer)


def _numbers(given: dict[str, float | None], budget: float | None) -> Numbers:
    from fedsim.planner.numbers import Numbers

    needed = {**given, "budget": budget}
    missing = [
        f"--{name.replace('_', '-')}"
        for name, value in needed.items()
        if value is None and name != "max_size"
    ]
    if missing:
        raise ConfigError(f"plan: without CONFIG it needs {', '.join(missing)}")
    filled = {**needed}
    if filled["max_size"] is None:
        filled["max_size"] = given["median_size"]
    return Numbers(**filled)  # type: ignore[arg-type]  # none is missing


def _refuse(option: str, value: object, reason: str) -> None:
    if value is not None and value != []:
        raise ConfigError(f"{option} = {value}: {reason}")
