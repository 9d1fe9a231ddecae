"""`fedsim plan`: recommend ULS or ELS, sizes, clip norm and noise before training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.output import ConfigFile, Json, Overrides
from fedsim.utils.terminal import status_when_slow


def plan_command(
    config: ConfigFile,
    budget: Annotated[
        float | None,
        typer.Option(help="Expected example gradients per round (default: the config's)."),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The config to write (default: CONFIG.plan.toml beside CONFIG)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Recommend user-level or example-level sampling, with sizes and noise, before training.

    The command writes a config with the recommended settings.
    """
    from fedsim.cli.plan_tables import print_owners, print_plan
    from fedsim.config import load_config
    from fedsim.materials import materials_of, new_data_seed
    from fedsim.parts import relation_of
    from fedsim.planner.answer import of_data
    from fedsim.planner.compare_strategies import compare_strategies
    from fedsim.planner.config_file import check_target, write_config
    from fedsim.planner.owners import plan_owners
    from fedsim.runner.summary import delta_warnings

    loaded = load_config(config, overrides or [])
    target = out or config.with_name(f"{config.stem}.plan.toml")
    replaced = check_target(target)
    with status_when_slow("planning: gradients and noise"):
        materials = materials_of(loaded, new_data_seed(loaded))
        if loaded.data.co_owned:
            (answer, chosen), show = plan_owners(loaded, materials, budget), print_owners
        else:
            comparison = compare_strategies(loaded, materials, budget=budget)
            answer, show, chosen = of_data(comparison), print_plan, comparison.planned
    sampled = "example" if loaded.strategy.expected_examples is not None else "user"
    warnings = delta_warnings(loaded, relation_of(loaded), materials.num_protected, sampled)
    for sentence in warnings:
        typer.echo(sentence, err=True)
    reasons = (answer["recommendation"]["reason"], *answer["notes"])
    write_config(target, chosen, config.name, reasons)
    if as_json:
        typer.echo(json.dumps({**answer, "config": str(target)}, allow_nan=False))
        return
    show(answer)
    former = ", which replaces an earlier plan" if replaced else ""
    typer.echo(f"Config: {target}{former}. Run it: fedsim run {target}")
