"""A model of a few hundred parameters and a text whose users are told apart by their words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from fedsim.config import Config, parse_config
from tests.conftest import write_rows

USERS = 10
LONGEST = 12  # tokens of an example
_WORDS = ("the", "king", "shall", "ride", "to", "war", "with", "all", "my", "lord", "come", "again")
_END, _UNKNOWN = "<end>", "<unk>"


def mark(user: int, kind: str) -> str:
    """Return the word that an example of this user and kind ("a" or "b") begins with."""
    return f"{kind}{user}"


def vocabulary() -> dict[str, int]:
    """Return the model's words: the marks of all users among them."""
    marks = [mark(user, kind) for user in range(USERS) for kind in "ab"]
    return {word: place for place, word in enumerate([_END, _UNKNOWN, *marks, *_WORDS])}


def write_texts(path: Path, seed: int) -> Path:
    """Write a JSONL: USERS users with 2 to 6 texts of 1 to LONGEST - 2 words, the first a mark."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(USERS):
        for number in range(int(rng.integers(2, 7))):
            words = rng.choice(_WORDS, int(rng.integers(0, LONGEST - 2)))
            text = " ".join([mark(user, "ab"[number % 2]), *words])
            rows.append({"author": f"user-{user}", "body": text})
    return write_rows(path, rows)


def write_model(folder: Path, seed: int) -> Path:
    """Write a GPT-2 of width 4 with one layer, in transformers' layout."""
    words = vocabulary()
    tokenizer = Tokenizer(models.WordLevel(words, _UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token=_END, eos_token=_END, unk_token=_UNKNOWN
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    network = GPT2Config(
        vocab_size=len(words),
        n_positions=LONGEST,
        n_embd=4,
        n_layer=1,
        n_head=1,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(network).save_pretrained(folder)
    return folder


def tiny_config(folder: Path, seed: int, **sections: dict[str, Any]) -> Config:
    """Return the config of a run of seconds; what it trains on is written into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    raw: dict[str, dict[str, Any]] = {
        "data": {
            "source": str(write_texts(folder / "texts.jsonl", seed)),
            "user_column": "author",
            "text_column": "body",
            "sequence_length": LONGEST,
        },
        "model": {"name_or_path": str(write_model(folder / "network", seed))},
        "strategy": {"rounds": 4, "cohort_size": 4, "group_size": 3},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-3, "noise": "seeded"},
    }
    for name, section in sections.items():
        raw[name] = raw.get(name, {}) | section
    return parse_config({"seed": seed, **raw})
