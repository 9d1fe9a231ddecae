"""`fedsim data`: make a token store, and look at one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedsim.config import DataConfig, ModelConfig, parse_config
from fedsim.data.build import build_store, cache_key, terminal_progress
from fedsim.data.sources import records
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from fedsim.registry import names

app = typer.Typer(no_args_is_help=True, help="Make a token store, and look at one.")

PRIVATE_NOTE = (
    "These numbers are computed on private data: no epsilon covers them; do not publish them, "
    "or tune by them without saying so."
)
_BAR_WIDTH = 40


@app.command()
def build(
    *,
    source: Annotated[
        str, typer.Argument(help='A file, a folder, a Hugging Face hub id or "shakespeare".')
    ],
    user_column: Annotated[str, typer.Option(help="The column that says whose a text is.")],
    text_column: Annotated[str, typer.Option(help="The column that holds the text.")],
    tokenizer: Annotated[
        str, typer.Option(help="A built-in model, or a transformers folder or hub id.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    sequence_length: Annotated[
        int, typer.Option(help="Most tokens of an example.")
    ] = DataConfig().sequence_length,
    cutting: Annotated[
        str, typer.Option(help="split or truncate longer texts, or join a user's texts.")
    ] = DataConfig().cutting,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that tokenise; 0 for none. By default one a CPU."),
    ] = None,
) -> None:
    """Tokenise a source once, by user, into the folder --out.

    A build that was killed goes on where it was when the same command is given again.
    """
    data = {
        "source": source,
        "user_column": user_column,
        "text_column": text_column,
        "sequence_length": sequence_length,
        "cutting": cutting,
    }
    config = parse_config({"data": data}).data
    if out.exists():
        raise ConfigError(f"--out {str(out)!r}: exists; name a folder that does not exist yet")
    # Imported here: it brings torch, which takes seconds that `inspect` need not wait.
    from fedsim.materials import load_model

    # Of a built-in model only the tokenizer is used, so it need not be pre-trained.
    steps = 0 if tokenizer in names("models") else None
    untrained = ModelConfig(name_or_path=tokenizer, pretraining_steps=steps)
    model = load_model(untrained, sequence_length=config.sequence_length)
    try:
        with terminal_progress() as progress:
            store = build_store(
                records(config),
                encode=model.encoder,
                vocabulary_size=model.vocabulary_size,
                tokenizer_fingerprint=model.tokenizer_fingerprint,
                sequence_length=config.sequence_length,
                cutting=config.cutting,
                destination=out,
                source=config.source,
                key=cache_key(config, model),
                num_workers=workers,
                progress=progress,
            )
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(f"--out {str(out)!r}: cannot be made: {error}") from error
    _print(_summary(store))


@app.command()
def inspect(
    store: Annotated[Path, typer.Argument(help="A folder that fedsim data build made.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte and compare the checksums.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how many users, examples and tokens a store has, and what was dropped."""
    opened = TokenStore.open(store)
    if verify:
        opened.verify()
    summary = _summary(opened)
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        _print(summary)


def _summary(store: TokenStore) -> dict[str, Any]:
    """Return what `inspect --json` prints; the histogram's buckets double in width."""
    sizes = np.diff(store.user_offsets)
    buckets = np.bincount(np.frexp(sizes)[1] - 1)  # bucket b: 2^b to 2^(b+1) - 1 examples
    return {
        "store": str(store.path),
        "source": store.manifest["source"],
        "users": store.num_users,
        "examples": store.num_examples,
        "tokens": store.num_tokens,
        "sequence_length": store.manifest["sequence_length"],
        "cutting": store.manifest["cutting"],
        "examples_per_user": {
            "min": int(sizes.min()),
            "median": float(np.median(sizes)),
            "mean": float(sizes.mean()),
            "max": int(sizes.max()),
        },
        "histogram": [
            {"from": 1 << bucket, "to": (2 << bucket) - 1, "users": int(count)}
            for bucket, count in enumerate(buckets)
        ],
        "dropped": store.manifest["dropped"],
        "note": PRIVATE_NOTE,
    }


def _print(summary: dict[str, Any]) -> None:
    facts = Table(show_header=False, box=None)
    for key in ("store", "source"):
        facts.add_row(key, summary[key])
    for key in ("users", "examples", "tokens"):
        facts.add_row(key, f"{summary[key]:,}")
    per_user = summary["examples_per_user"]
    spread = ", ".join(f"{name} {value:,g}" for name, value in per_user.items())
    facts.add_row("examples per user", spread)
    facts.add_row("longest example", f"{summary['sequence_length']} ({summary['cutting']})")
    dropped = ", ".join(f"{reason}: {count:,}" for reason, count in summary["dropped"].items())
    facts.add_row("dropped", dropped or "nothing")
    console = Console()
    console.print(facts)
    console.print(_histogram(summary["histogram"]))
    console.print(summary["note"])


def _histogram(buckets: list[dict[str, int]]) -> Table:
    table = Table("examples", "users", "", box=None)
    tallest = max(bucket["users"] for bucket in buckets)
    for bucket in buckets:
        first, last, users = bucket["from"], bucket["to"], bucket["users"]
        bar = "█" * -(-_BAR_WIDTH * users // tallest)  # rounded up: one user is still seen
        table.add_row(f"{first}" if first == last else f"{first}–{last}", f"{users:,}", bar)
    return table
