"""`fedsim tune`: search for settings; one ε covers the search, the best model and its score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedsim.cli.compare import Address, GridOption, Workers, runner_of
from fedsim.cli.output import Json, Overrides


def tune_command(
    *,
    config: Annotated[Path, typer.Argument(help="A run's config, with its ε and δ.")],
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="KEY.PATH=V,V,...",
            help="Values of a key to try; if repeated, every combination is a candidate.",
        ),
    ],
    trials: Annotated[
        float,
        typer.Option(help="Average number of trials; the actual number is random and secret."),
    ] = 8.0,
    stopping: Annotated[
        Literal["geometric", "logarithmic", "poisson"],
        typer.Option(
            help="Distribution of the number of trials: geometric; logarithmic (cheaper, often one "
            "trial); poisson (needs accountant rdp; sometimes no trial)."
        ),
    ] = "geometric",
    overrides: Overrides = None,
    grid: GridOption = "in-process",
    workers: Workers = None,
    address: Address = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the search (default: runs/NAME.tune for NAME.toml)."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the search in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cost of the search; train nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Search for the best settings on private text; one ε covers everything that is kept.

    Each trial is a whole run, and its model gets a private score (training.private_evaluation).
    Only the best trial is kept, as the run folder OUT/winner. Keep the other trials and their
    number secret.
    """
    from fedsim.errors import ConfigError
    from fedsim.report.schema import CoveredScores
    from fedsim.report.wording import PRIVATE_SCORES, scores_text
    from fedsim.sweep.cells import expand, parse_variation
    from fedsim.sweep.search import RESULT, prepare, run_search

    cells = expand(
        config, [parse_variation(text) for text in vary], overrides or [], noise="secure"
    )
    runner = runner_of(grid, workers, address)
    if dry_run and resume:
        raise ConfigError("--resume with --dry-run: a dry run trains nothing; give one of the two")
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
    typer.echo(f"Chosen: {chosen}.\n{PRIVATE_SCORES}: {scores}")
    typer.echo(f"Run: {winner}")
