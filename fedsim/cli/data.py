"""`fedsim data`: build and inspect token stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.inspection import print_inspection
from fedsim.cli.output import Json, Overrides
from fedsim.config import ModelConfig, parse_config, with_settings
from fedsim.data import reading
from fedsim.data.config import load_recipe, recipe_names
from fedsim.data.inspection import inspect_store
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError, about
from fedsim.registry import names, resolve

app = typer.Typer(
    no_args_is_help=True,
    help="Build a token store (text tokenised and ordered by user) and inspect it.",
)


@app.command()
def build(
    *,
    source: Annotated[
        str | None,
        typer.Argument(help='A file, a folder, a Hugging Face hub id or "shakespeare".'),
    ] = None,
    user_column: Annotated[
        str | None, typer.Option(help="Column with the user of each text.")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Recipe that supplies the missing options; see `data recipes`."),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option(
            help="The tokenizer: name of a built-in model, or a transformers folder or hub id."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to create.")],
    sequence_length: Annotated[
        int | None, typer.Option(help="Maximum number of tokens per example (default: 64).")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Tokenise a source and write it, ordered by user, to a token store in the folder --out.

    Set other keys of [data] with --set, such as --set data.cutting=join. A killed build leaves no
    store; give the same command again.
    """
    options = {
        "recipe": recipe,
        "source": source,
        "user_column": user_column,
        "text_column": text_column,
        "sequence_length": sequence_length,
    }
    known = {key: value for key, value in options.items() if value is not None}
    config = with_settings(parse_config({"data": known}), overrides or []).data
    needed = {"SOURCE": source, "--user-column": config.user_column or config.owners_column}
    if missing := [option for option, value in needed.items() if value is None and recipe is None]:
        raise ConfigError(f"give {', '.join(missing)}, or --recipe; see fedsim data recipes")
    if out.exists():
        raise ConfigError(f"--out {str(out)!r}: exists; name a folder that does not exist yet")
    # Imported here because it imports torch, which takes seconds and `inspect` does not need.
    from fedsim.materials import check_not_prepared_twice, load_model

    check_not_prepared_twice(config)
    # Only the tokenizer is used, so a built-in model needs no pre-training.
    steps = 0 if tokenizer in names("models") else None
    untrained = ModelConfig(name_or_path=tokenizer, pretraining_steps=steps)
    try:
        model = load_model(untrained, sequence_length=config.sequence_length)
    except ConfigError as error:
        raise ConfigError(str(error).replace("model.name_or_path", "--tokenizer")) from None
    refused = (FileExistsError, NotADirectoryError, PermissionError)
    with about(f"--out {str(out)!r}: cannot be made: ", refused):
        store = reading.build(config, model, reading.encoder(config, model), out)
    for words in reading.unread_files(config):
        typer.echo(words, err=True)
    print_inspection(inspect_store(store))


@app.command()
def inspect(
    store: Annotated[Path, typer.Argument(help="A folder that fedsim data build made.")],
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read every byte and check it against the stored checksums."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a store's counts of users, examples, tokens and dropped rows, and quantiles."""
    opened = TokenStore.open(store)
    if verify:
        opened.verify()
    facts = inspect_store(opened)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        print_inspection(facts)


@app.command()
def selections(
    store: Annotated[Path, typer.Argument(help="A folder that fedsim data build made.")],
    model: Annotated[
        str,
        typer.Option(
            help="Model that measures perplexity: a built-in model, a folder or a hub id."
        ),
    ] = "tiny-gpt",
    group_size: Annotated[
        int, typer.Option(min=1, help="Maximum number of records selected per user.")
    ] = 8,
    as_json: Json = False,
) -> None:
    """Compare length and perplexity of the records each rule selects (Chua et al., Table 7)."""
    show = resolve("analyses", "selections", "data selections")
    show(TokenStore.open(store), model, group_size, as_json=as_json)


@app.command()
def recipes(
    as_json: Json = False,
) -> None:
    """List the recipes for data sets of papers: for `data.recipe` and `data build --recipe`."""
    all_recipes = {name: load_recipe(name).model_dump() for name in recipe_names()}
    if as_json:
        typer.echo(json.dumps(all_recipes))
        return
    for name, recipe in all_recipes.items():
        source = recipe["data"].get("source", "a local copy")
        typer.echo(f"{name} ({source})\n  {recipe['description']}\n  Follows {recipe['follows']}.")
        typer.echo(f"  Differs: {recipe['differs']}\n  Licence: {recipe['licence']}.\n")
    typer.echo('In a config: [data] recipe = "NAME", with source = "PATH" for a local copy.')
