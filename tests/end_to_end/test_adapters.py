"""A run with adapters leaves what peft opens on the base, with the logits of the merged model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig
from fedsim.materials import load_model
from tests.helpers.commands import fedsim, write_config


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
    done = fedsim("run", config, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
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
    assert found.base_model_name_or_path == str(base)
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
        config = write_config(tmp_path / f"{number}.toml", speeches, model=model)
        done = fedsim("run", config, "--out", tmp_path / str(number))
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / str(number) / "adapter").exists()
