"""A run with adapters leaves what peft opens on the base, with the logits of the merged model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import fedsim as library
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig
from fedsim.materials import load_model
from tests.conftest import small_config
from tests.helpers.commands import fedsim, fedsim_ok, write_config
from tests.helpers.light import write_config as write_light


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of transformers that training starts from."""
    folder = tmp_path_factory.mktemp("base") / "model"
    config = ModelConfig(name_or_path="tiny-gpt", pretraining_steps=0)
    model = load_model(config, sequence_length=24)
    model.save(model.initial_parameters(), folder)
    return folder


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's
@pytest.mark.parametrize(
    "options",
    [{}, {"lora_alpha": 5, "lora_rank_stabilised": True}, {"lora_freeze_a": True}],
    ids=["plain", "rank-stabilised", "frozen A"],
)
def test_the_adapter_on_its_base_is_the_model(
    base: Path, speeches: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    model = {"name_or_path": str(base), "pretraining_steps": None, "lora_rank": 2, **options}
    config = write_config(
        tmp_path / "c.toml",
        speeches,
        model={**model, "trainable": "all"},
        server={"learning_rate": 0.05},
    )
    fedsim_ok("run", config, "--out", tmp_path / "run")
    tokens = torch.arange(24)[None] * 7 % 500
    start = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        before = start(tokens).logits
        adapted = PeftModel.from_pretrained(start, str(tmp_path / "run" / "adapter"))
        after = adapted(tokens).logits
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")(tokens).logits
    torch.testing.assert_close(after, whole, rtol=0.0, atol=1e-5)
    assert (after - before).abs().max() > 1e-3
    (found,) = adapted.peft_config.values()
    assert found.base_model_name_or_path == base.name  # and not where it lies
    assert found.r == 2


def test_only_a_frozen_first_matrix_stays_where_it_was() -> None:
    def trained(**options: Any) -> set[str]:  # noqa: ANN401
        config = ModelConfig(pretraining_steps=0, lora_rank=2, **options)
        found = load_model(config, sequence_length=24)
        assert isinstance(found, TransformersModel)
        assert found.is_adapter
        return set(found.initial_parameters())

    both, second = trained(), trained(lora_freeze_a=True)
    assert second < both
    assert {name.replace("lora_B", "lora_A") for name in second} == both - second


def test_without_adapters_there_is_no_such_folder(speeches: Path, tmp_path: Path) -> None:
    """Nor where something else is trained beside them: an adapter alone would be another model."""
    mixed = {"lora_rank": 2, "trainable": r"lora_|ln_f"}
    for number, model in enumerate(({}, mixed)):
        config = write_light(tmp_path / f"{number}.toml", speeches, model=model)
        fedsim_ok("run", config, "--out", tmp_path / str(number))
        assert not (tmp_path / str(number) / "adapter").exists()


@pytest.fixture(scope="module")
def first(base: Path, speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> library.Run:
    """A run that leaves adapters alone."""
    config = small_config(
        speeches,
        data={"held_out_users": 0.4},
        model={
            "name_or_path": str(base),
            "pretraining_steps": None,
            "lora_rank": 2,
            "trainable": "all",
            "merged": False,
        },
        privacy={"noise_multiplier": 0.1},  # so little that the loss falls whatever is drawn
        server={"learning_rate": 0.05},
    )
    return library.run(config, tmp_path_factory.mktemp("first") / "run")


def continued(first: library.Run, **model: Any) -> dict[str, Any]:  # noqa: ANN401
    raw = library.load_config(first.path / "config.toml").model_dump(exclude_none=True)
    keep = {"name_or_path": raw["model"]["name_or_path"]}
    return {**raw, "model": {**keep, "adapter": str(first.adapter), **model}}


def test_without_merged_weights_the_adapter_is_what_is_scored_and_attacked(
    first: library.Run,
) -> None:
    assert first.adapter is not None
    assert not (first.path / "model").exists()
    assert {"README.md", "privacy.json"} <= {path.name for path in first.adapter.iterdir()}
    before, after = first.report.utility.initial, first.report.utility.final
    assert after.loss < before.loss
    for arguments in (
        ("account", "verify", first.adapter),
        ("evaluate", first.path),
        ("attack", first.path, "--samples", "1"),
    ):
        fedsim_ok(*arguments)
    tokens = first.tokenizer("the king", return_tensors="pt")["input_ids"]
    assert torch.isfinite(first.model(tokens).logits).all()


@pytest.mark.parametrize(
    ("steps", "target", "more"),
    [(0, "wte", {}), (2, "c_attn", {}), (2, "c_attn", {"quantisation": "nf4"})],
    ids=["shared weight", "pre-trained", "4 bits"],
)
def test_an_adapter_alone_stands_on_the_base_that_it_was_trained_on(
    speeches: Path, tmp_path: Path, steps: int, target: str, more: dict[str, Any]
) -> None:
    """A built-in model is named with how long it was pre-trained, which is part of the base.

    The table of words is also the output layer: its adapter cannot be merged, and need not be.
    """
    model = {"pretraining_steps": steps, "lora_rank": 2, "trainable": "all", "merged": False}
    model |= {"lora_target_modules": [target], **more}
    config = write_config(tmp_path / "c.toml", speeches, model=model)
    done = fedsim_ok("run", config, "--out", tmp_path / "run")
    done = fedsim_ok("evaluate", tmp_path / "run", "--json")
    found = json.loads(done.stdout)["stages"]
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    for stage in ("initial", "final"):
        loss = found[stage]["held_out_examples"]["loss"]
        assert loss == pytest.approx(report["utility"][stage]["loss"], rel=1e-5)


def test_a_run_starts_from_a_folder_of_adapters(
    first: library.Run, base: Path, tmp_path: Path
) -> None:
    """Where the first one ended, at the losses that it had."""
    raw = continued(first)
    raw["privacy"]["noise_multiplier"] = 2.0
    second = library.run(raw, tmp_path / "run")
    ended = first.report.utility.final.loss
    assert second.report.utility.initial.loss == pytest.approx(ended, rel=1e-6)
    assert second.report.utility.final.loss != second.report.utility.initial.loss
    assert second.adapter is not None
    assert [run.report.model.lora_rank for run in (first, second)] == [2, 2]
    assert (second.path / "model").exists()
    assert not any("went on" in sentence for sentence in first.report.privacy.assumptions)
    card = (second.adapter / "README.md").read_text(encoding="utf-8")
    assert f"from `{base.name}` and its adapter `adapter` with" in card
    assert "Training started from the adapter 'adapter'; fedsim does not know the text" in card
    assert f"the two δ add up: {first.report.privacy.statement}" in card
    checked = fedsim_ok("account", "verify", second.adapter)
    assert f"add up: {first.report.privacy.statement}" in checked.stdout
    assert second.report.privacy.statement != first.report.privacy.statement
    third = library.run(continued(second), tmp_path / "third")
    assert third.adapter is not None
    card = (third.adapter / "README.md").read_text(encoding="utf-8")
    for earlier in (first, second):
        assert f"the two δ add up: {earlier.report.privacy.statement}" in card
    fedsim_ok("account", "verify", third.adapter)
    fedsim_ok("attack", second.path, "--samples", "1")


def test_an_adapter_that_does_not_fit_is_refused(first: library.Run, tmp_path: Path) -> None:
    smaller = GPT2Config(vocab_size=10_000, n_embd=16, n_layer=1, n_head=2, n_positions=24)
    GPT2LMHeadModel(smaller).save_pretrained(tmp_path / "smaller")
    AutoTokenizer.from_pretrained(first.adapter).save_pretrained(tmp_path / "smaller")
    (tmp_path / "prompt").mkdir()
    settings = {"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 3}
    (tmp_path / "prompt" / "adapter_config.json").write_text(json.dumps(settings))
    (tmp_path / "prompt" / "adapter_model.safetensors").write_bytes(b"")
    shutil.copytree(str(first.adapter), tmp_path / "half")
    content = (tmp_path / "half" / "adapter_model.safetensors").read_bytes()
    (tmp_path / "half" / "adapter_model.safetensors").write_bytes(content[:-9])
    shutil.copytree(str(first.adapter), tmp_path / "fewer")
    some = load_file(tmp_path / "fewer" / "adapter_model.safetensors")
    del some[min(some)]
    save_file(some, tmp_path / "fewer" / "adapter_model.safetensors")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"name_or_path": str(tmp_path / "smaller")}, "does not fit|belongs to another network"),
        ({"adapter": str(tmp_path / "none")}, "there is no adapter_config.json; give a folder"),
        ({"adapter": str(tmp_path / "prompt")}, "PROMPT_TUNING adapters; only LoRA is read"),
        ({"adapter": str(tmp_path / "half")}, "does not fit"),
        ({"adapter": str(tmp_path / "fewer")}, "belongs to another network than"),
        ({"lora_rank": 4}, "lora_rank is for new adapters"),
        ({"trainable": "ln_", "merged": False}, "merged = false needs adapters"),
    ]
    for model, message in cases:
        config = tmp_path / "config.toml"
        raw = continued(first, **model)
        config.write_text(tomli_w.dumps(raw), encoding="utf-8")
        done = fedsim("run", config, "--out", tmp_path / "run")
        assert re.search(message, done.complaint), done.complaint
        assert done.complaint.count("model.adapter") <= 1
    assert not (tmp_path / "run").exists()
