"""`fedsim tune`: choose settings with one ε for the search, its winner and the winner's score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedsim.cli.compare import Address, GridOption, Workers, runner_of
from fedsim.cli.output import Json, Overrides


def tune_command(
    *,
    config: Annotated[Path, typer.Argument(help="The config of a run, with its ε and δ.")],
    vary: Annotated[
        list[str],
        typer.Option(metavar="KEY.PATH=V,V,...", help="The candidates: each combination."),
    ],
    trials: Annotated[
        float, typer.Option(help="How many trials there are on average; their number is secret.")
    ] = 8.0,
    stopping: Annotated[
        Literal["geometric", "logarithmic", "poisson"],
        typer.Option(
            help="The law of their number: geometric; logarithmic (cheaper, often one trial); "
            "poisson (accountant rdp; none now and then)."
        ),
    ] = "geometric",
    overrides: Overrides = None,
    grid: GridOption = "in-process",
    workers: Workers = None,
    address: Address = "",
    out: Annotated[
        Path | None, typer.Option(help="The search's folder; runs/NAME.tune by default.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Take up the search in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the search would cost; train nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Try settings on private text and keep the best, under one ε for everything that is kept.

    Each trial is a whole run with a private score of its model (training.private_evaluation). Only
    the best one is kept, as a run folder, OUT/winner; do not show the others, nor their number.
    """
    from fedsim.errors import ConfigError
    from fedsim.report.schema import CoveredScores, load_report
    from fedsim.report.wording import scores_label, scores_text
    from fedsim.sweep.cells import expand, parse_variation
    from fedsim.sweep.search import RESULT, prepare, run_search

    cells = expand(config, [parse_variation(text) for text in vary], overrides or [])
    runner = runner_of(grid, workers, address)
    if dry_run and resume:
        raise ConfigError("--resume: with --dry-run nothing is trained")
    if dry_run:
        search = prepare(cells, trials, stopping, None)
        answer = {
            "epsilon": search.epsilon,
            "delta": cells[0].config.privacy.delta,
            "candidates": len(cells),
            "noise_multiplier": search.plan.noise_multiplier,
            "epsilon_of_a_trial_by_itself": search.epsilon_of_trial,
            "statement": search.sentence(),
        }
        typer.echo(json.dumps(answer, allow_nan=False) if as_json else search.sentence())
        return
    folder = out or Path("runs") / f"{config.stem}.tune"
    winner = run_search(
        cells,
        folder,
        trials=trials,
        stopping=stopping,
        resume=resume,
        runner=runner,
    )
    result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    if as_json:
        typer.echo(json.dumps(result, allow_nan=False))
        return
    scores = scores_text(CoveredScores(**result["private_scores"]))
    chosen = ", ".join(f"{label} = {value}" for label, value in result["chosen"].items())
    typer.echo(result["statement"])
    typer.echo(f"Chosen: {chosen}.\n{scores_label(load_report(winner).privacy)}: {scores}")
    typer.echo(f"Run: {winner}")
