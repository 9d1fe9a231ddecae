"""Pre-training: on public text alone, the same each time, made once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, PreTrainedModel

from fedsim.clients.models import pretraining
from fedsim.clients.models.pretraining import Schedule, pretrained, random_start
from fedsim.clients.models.tiny_gpt import load as load_tiny_gpt
from fedsim.clients.models.tokenizers import END_OF_TEXT, byte_pair_tokenizer, public_text
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError

SCHEDULE = Schedule(steps=3, learning_rate=1e-2, warmup_steps=1, batch_size=4, block_length=16)


def small_config(width: int = 16) -> GPT2Config:
    return GPT2Config(
        vocab_size=300,
        n_embd=width,
        n_layer=1,
        n_head=2,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )


@pytest.fixture(autouse=True)
def _few_speeches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pre-train on the first hundred speeches; all of them take seconds to encode."""
    monkeypatch.setattr(pretraining, "public_text", lambda: public_text()[:100])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))
    return tmp_path / "models"


def make(schedule: Schedule = SCHEDULE, width: int = 16) -> PreTrainedModel:
    return pretrained("small", small_config(width), byte_pair_tokenizer(300), schedule)


def weights(module: PreTrainedModel) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in module.parameters()])


def public_loss(module: PreTrainedModel) -> float:
    tokenizer = byte_pair_tokenizer(300)
    ids = torch.tensor(tokenizer(" ".join(public_text()[:20]))["input_ids"])
    tokens = ids[: len(ids) // 16 * 16].reshape(-1, 16)
    with torch.no_grad():
        logits = module(tokens).logits[:, :-1]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))


def test_it_learns_public_text(cache: Path) -> None:
    start = random_start(small_config(), SCHEDULE.seed)
    trained = make(replace(SCHEDULE, steps=30))
    assert public_loss(trained) < public_loss(start) - 0.5


def test_it_is_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = weights(make())
    monkeypatch.delattr(pretraining, "_train")  # a second training would fail
    assert torch.equal(weights(make()), first)
    (folder,) = cache.iterdir()
    assert folder.name.startswith("small-")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in folder.iterdir()
    }


def test_it_repeats_whatever_the_global_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for seed in (1, 2):
        monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / str(seed)))
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        made.append(weights(make()))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(*made)


def test_a_failure_leaves_no_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "save_pretrained", fail)
        with pytest.raises(OSError, match="no space"):
            make()
    assert not list(cache.glob("small-*"))
    assert weights(make()).numel() > 0


def test_no_steps_is_the_random_start(cache: Path) -> None:
    start = random_start(small_config(), SCHEDULE.seed)
    assert torch.equal(weights(make(replace(SCHEDULE, steps=0))), weights(start))


def test_tiny_gpt_takes_no_longer_sequences_than_it_has_positions() -> None:
    config = ModelConfig(name_or_path="tiny-gpt", pretraining_steps=0)
    load_tiny_gpt(config, sequence_length=128)
    with pytest.raises(ConfigError, match=r"data\.sequence_length = 129: .* 128 positions"):
        load_tiny_gpt(config, sequence_length=129)


def test_byte_pairs_spell_any_text_and_repeat() -> None:
    tokenizer = byte_pair_tokenizer(2000)
    text = "naïve 🐎\tking"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.convert_tokens_to_ids(END_OF_TEXT) == 0
    assert len(tokenizer("the king and the lord")["input_ids"]) == 5
