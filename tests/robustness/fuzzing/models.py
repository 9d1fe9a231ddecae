"""Hostile model folders: pickles, code, other places, and damage in what transformers reads."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

import fedsim.clients.models.tiny_gpt
from fedsim.config import ModelConfig
from fedsim.materials import load_model
from tests.robustness.fuzzing.mutations import Dice, changed_bytes, changed_tree, pick
from tests.robustness.fuzzing.samples import RUN, finished_run, read_json, write_json
from tests.robustness.fuzzing.store import Payload
from tests.robustness.fuzzing.target import Target, believe

# Imported before readers are forked, so that none of them waits for it.
NETWORKS = (GPT2LMHeadModel, fedsim.clients.models.tiny_gpt)
_MODEL, _WEIGHTS = "model", "model.safetensors"
_OUTSIDE = "../../outside/secret.safetensors"
_CODE = """
from pathlib import Path
Path("executed").mkdir()
from transformers import GPT2Config as Config, GPT2LMHeadModel as Model, GPT2Tokenizer as Tokenizer
"""
_AUTO_MAP = {
    "AutoConfig": "evil.Config",
    "AutoModelForCausalLM": "evil.Model",
    "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"],
}


def _write(valid: Path, place: Path, dice: Dice) -> None:
    folder = place / _MODEL
    shutil.copytree(valid / RUN / "model", folder)
    how = pick(dice, [_pickled, _with_code, _elsewhere, _damaged, _damaged, _other_weights])
    how(folder, dice)


def _pickled(folder: Path, dice: Dice) -> None:
    """Weights that execute when they are read, beside the safe ones or in their place."""
    if dice.random() < 0.8:
        (folder / _WEIGHTS).unlink()
    path = folder / pick(dice, ["pytorch_model.bin", "model.bin", "tf_model.h5"])
    if dice.random() < 0.5:
        path.write_bytes(pickle.dumps(Payload()))
    else:
        torch.save({"transformer.wte.weight": torch.zeros(2), "x": Payload()}, path)
    if dice.random() < 0.3:
        index = {"metadata": {}, "weight_map": {"transformer.wte.weight": path.name}}
        write_json(folder / "pytorch_model.bin.index.json", index)


def _with_code(folder: Path, dice: Dice) -> None:
    """Python files, and configs that ask for them."""
    for name in ("evil.py", "modeling_gpt2.py", "configuration_gpt2.py", "tokenization_gpt2.py"):
        (folder / name).write_text(_CODE, encoding="utf-8")
    for name in ("config.json", "tokenizer_config.json"):
        content = read_json(folder / name)
        content["auto_map"] = _AUTO_MAP
        if dice.random() < 0.7:
            content["model_type"] = "evil"
        if dice.random() < 0.3:
            content["custom_generate"] = "evil.py"
            content["trust_remote_code"] = True
            content["tokenizer_class"] = "EvilTokenizer"
        write_json(folder / name, content)


def _elsewhere(folder: Path, dice: Dice) -> None:
    """Names of files that are outside of the folder."""
    how = int(dice.integers(3))
    if how == 0:
        (folder / _WEIGHTS).unlink()
        names = {"transformer.wte.weight": _OUTSIDE}
        write_json(folder / f"{_WEIGHTS}.index.json", {"metadata": {}, "weight_map": names})
    elif how == 1:
        adapter = {"base_model_name_or_path": "../outside", "peft_type": "LORA", "r": 2}
        write_json(folder / "adapter_config.json", adapter)
        save_file({"x": torch.zeros(1)}, folder / "adapter_model.safetensors")
    else:
        content = read_json(folder / "tokenizer_config.json")
        content |= {
            "tokenizer_file": _OUTSIDE,
            "vocab_file": _OUTSIDE,
            "name_or_path": "../outside",
        }
        write_json(folder / "tokenizer_config.json", content)


def _damaged(folder: Path, dice: Dice) -> None:
    path = pick(dice, sorted(path for path in folder.iterdir()))
    if path.suffix == ".json" and dice.random() < 0.7:
        write_json(path, changed_tree(dice, read_json(path)))
    else:
        path.write_bytes(changed_bytes(dice, path.read_bytes()))


def _other_weights(folder: Path, dice: Dice) -> None:
    """Tensors that lack, are of another shape or type, or are one too many."""
    tensors: dict[str, Any] = load_file(folder / _WEIGHTS)
    name = pick(dice, sorted(tensors))
    how = int(dice.integers(5))
    if how == 0:
        del tensors[name]
    elif how == 1:
        tensors[name] = torch.zeros(3, 5)
    elif how == 2:
        tensors["another.weight"] = torch.zeros(2)
    elif how == 3:
        tensors = {} if dice.random() < 0.5 else {"x": torch.zeros(1)}
    else:
        tensors[name] = tensors[name].to(pick(dice, [torch.float64, torch.int64, torch.bool]))
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})


def _read(place: Path) -> None:
    folder = place / _MODEL
    model = load_model(ModelConfig(name_or_path=str(folder)), sequence_length=8)
    believe(model.vocabulary_size >= 1, "a model without words")
    (ids,) = model.encode(["the king"])
    believe(max(ids) < model.vocabulary_size, "an id beyond the vocabulary")
    weights = folder / _WEIGHTS
    believe(weights.exists(), "weights from somewhere else")
    kept = load_file(weights)
    for name, value in model.initial_parameters().items():
        believe(name in kept, f"{name} was made up")
        believe(torch.equal(value.nan_to_num(), kept[name].float().nan_to_num()), f"other {name}")
    believe(json.loads((folder / "config.json").read_text("utf-8")) is not None, "no config")


TARGETS = (Target("model folder", _write, _read, prepare=finished_run),)
