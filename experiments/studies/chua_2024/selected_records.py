"""`fedsim data selections`: the records that each rule selects (Chua et al. 2024, Table 7)."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import typer

from fedsim.config import ModelConfig
from fedsim.data.inspection import PRIVATE_NOTE
from fedsim.data.selection import CohortRule, cohort_block
from fedsim.data.split import split_store
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from fedsim.evaluation.metrics import perplexity
from fedsim.evaluation.score_cache import losses_for
from fedsim.evaluation.scoring import batches_by_length, score_padded
from fedsim.materials import Materials, load_model
from fedsim.utils.terminal import status_when_slow, table_console, table_of

_SEED = 0
_USERS_AT_ONCE = 1000


# "least-demand" is only for texts with several owners.
_RULES = [rule for rule in get_args(CohortRule) if rule != "least-demand"]


def selection_table(store: TokenStore, model_name: str, group_size: int) -> dict[str, Any]:
    """Return the result of `fedsim data selections --json`: one row per rule, over all users.

    Args:
        store: a token store.
        model_name: name of the model before training; the store must have its tokenizer.
        group_size: maximum number of records per user; for random chunks, of sequences.

    Raises:
        ConfigError: the model has another tokenizer.
    """
    longest = int(store.manifest["sequence_length"])
    model = load_model(ModelConfig(name_or_path=model_name), sequence_length=longest)
    if model.tokenizer_fingerprint != store.manifest["tokenizer_fingerprint"]:
        raise ConfigError(
            f"--model = {model_name!r}: the store was made with another tokenizer; give the model "
            "of its tokenizer (--tokenizer of fedsim data build)"
        )
    materials = Materials(model, store, split_store(store, _SEED, 0.0, 0.0), _SEED)
    return {
        "store": str(store.path),
        "model": model_name,
        "group_size": group_size,
        "rows": [_row(materials, rule, group_size, longest) for rule in _RULES],
        "note": PRIVATE_NOTE,
    }


def _row(materials: Materials, rule: CohortRule, group_size: int, longest: int) -> dict[str, Any]:
    model, split = materials.model, materials.split
    start = {n: value.to(model.device) for n, value in model.initial_parameters().items()}
    sequences = tokens = predicted = short = nats = 0.0
    for users in np.array_split(np.arange(split.num_users), -(-split.num_users // _USERS_AT_ONCE)):
        block = cohort_block(
            split,
            materials.store,
            users,
            group_size=group_size,
            rule=rule,
            seed=_SEED,
            round=0,
            losses=losses_for(materials, rule),
        )
        sequences += len(block.lengths)
        tokens += int(block.lengths.sum())
        short += int((block.lengths < longest).sum())
        for places in batches_by_length(block.lengths, model.vocabulary_size):
            lengths = block.lengths[places]
            padded = block.tokens[places, : lengths.max()]
            sums = score_padded(model, start, padded, lengths)
            nats, predicted = nats + float(sums[0].sum()), predicted + float(sums[2].sum())
    return {
        "selection": rule,
        "sequences": int(sequences),
        "mean_length": tokens / sequences,
        "perplexity": perplexity(nats / predicted) if predicted else None,
        "shorter_than_sequence_length": short / sequences,
    }


def show(store: TokenStore, model_name: str, group_size: int, *, as_json: bool) -> None:
    """Print the result of `selection_table`, as a table or as JSON."""
    with status_when_slow("scoring"):
        found = selection_table(store, model_name, group_size)
    if as_json:
        typer.echo(json.dumps(found))
        return
    title = f"At most {found['group_size']} per user, scored by {found['model']}"
    heads = ("selection", "sequences", "mean length", "perplexity", "below the longest")
    table = table_of(title, heads, left=("selection",))
    for row in found["rows"]:
        scored = row["perplexity"]
        table.add_row(
            row["selection"],
            f"{row['sequences']:,}",
            f"{row['mean_length']:.1f}",
            "–" if scored is None else f"{scored:.2f}",
            f"{row['shorter_than_sequence_length']:.1%}",
        )
    console = table_console()
    console.print(table)
    console.print(found["note"])
