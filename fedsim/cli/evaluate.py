"""`fedsim evaluate`: evaluate a finished run on held-out text in detail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import to_jsonable_python
from rich.console import Console

from fedsim.cli.output import Json, RunDir
from fedsim.utils.section import MOST
from fedsim.utils.terminal import status_when_slow, table_console, table_of


def evaluate_command(  # noqa: PLR0917 (each is an option)
    run_dir: RunDir,
    personalise: Annotated[
        int,
        typer.Option(
            min=0,
            help="Local epochs on half of each held-out user's text; the other half is scored. "
            "0: no personalisation.",
        ),
    ] = 0,
    learning_rate: Annotated[
        float,
        typer.Option(help="With --personalise: learning rate of the local steps."),
    ] = 0.1,
    batch_size: Annotated[
        int,
        typer.Option(min=1, max=MOST, help="With --personalise: examples per local step."),
    ] = 8,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The JSON file to write (default: RUN_DIR/evaluation.json).", dir_okay=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a run's initial and final model on held-out text.

    The scores: losses averaged over tokens and over users; how often the ten likeliest tokens are
    head words (the most frequent words); samples of generated text. With --personalise also the
    losses after local training.
    """
    from fedsim.config import FedAvg
    from fedsim.errors import ConfigError
    from fedsim.runner.detailed_evaluation import evaluate_run
    from fedsim.utils.files import write_atomically

    if not 0.0 < learning_rate < 3e38:
        raise ConfigError(f"--learning-rate = {learning_rate}: give a finite number > 0")
    steps = {"epochs": personalise, "batch_size": batch_size, "learning_rate": learning_rate}
    local = FedAvg.model_validate({"task": "fedavg", **steps}) if personalise else None
    place = out or run_dir / "evaluation.json"
    with status_when_slow("scoring"):
        answer = evaluate_run(run_dir, personalisation=local)
    plain = to_jsonable_python(answer, inf_nan_mode="null")
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    write_atomically(place, text + "\n")
    if as_json:
        typer.echo(json.dumps(plain))
        return
    _show(answer, table_console())


def _show(answer: dict[str, Any], console: Console) -> None:
    heads = ("", "users", "tokens", "loss", "perplexity", "top-1", "loss, mean over users")
    formats = {
        "users": ",",
        "tokens": ",",
        "loss": ".4f",
        "perplexity": ".2f",
        "accuracy_top1": ".2%",
        "user_loss": ".4f",
    }
    rows = [
        [
            f"{stage}, {what.replace('_', ' ')}",
            *(f"{scores[what][k]:{f}}" for k, f in formats.items()),
        ]
        for stage, scores in answer["stages"].items()
        for what in ("held_out_examples", "held_out_users")
        if scores[what]["tokens"]
    ]
    console.print(table_of("Held-out text, nats per predicted token", heads, rows))
    for stage, scores in answer["stages"].items():
        written = [repr(text) for text in scores["samples"]]
        console.print(f"{stage} writes:", *written, sep="\n  ", markup=False, emoji=False)
    if "personalisation" in answer:
        _show_personalisation(answer["personalisation"], console)
    console.print(f"Losses and counts are {answer['note']}.")


def _show_personalisation(answer: dict[str, Any], console: Console) -> None:
    settings = ", ".join(f"{key.replace('_', ' ')} {v}" for key, v in answer["settings"].items())
    left = f"without {answer['users_left_out']:,} users with a single text"
    title = f"Personalised for {answer['users']:,} held-out users, {left} ({settings})"
    heads = ("", "parameters", "loss without", "personalised", "users helped", "diverged")
    rows = []
    for stage in ("initial", "final"):
        one = answer[stage]
        losses = (one[part]["user_loss"] for part in ("without", "personalised"))
        cells = ["–" if loss is None else f"{loss:.4f}" for loss in losses]
        counts = (f"{one['users_helped']}", f"{one['users_diverged']}")
        rows.append([stage, f"{one['parameters_moved']:,}", *cells, *counts])
    console.print(table_of(title, heads, rows))
