"""What every built-in model promises as a `LanguageModel`; a new one is a new row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig
from fedsim.language_model import LanguageModel
from fedsim.materials import load_model


@dataclass(frozen=True)
class Row:
    name: str
    parameters: int
    vocabulary: int
    some: str  # a pattern that finds some parameters


ROWS = {
    "tiny-gpt": Row("tiny-gpt", 1_065_728, 2000, r"ln_"),
    "mcmahan-lstm": Row("mcmahan-lstm", 1_346_144, 10_000, r"lstm"),
}


def load(name: str, *, seed: int = 0, lora_rank: int = 0, trainable: str = "all") -> LanguageModel:
    config = ModelConfig(
        name_or_path=name, lora_rank=lora_rank, trainable=trainable, pretraining_steps=0
    )
    return load_model(config, seed)


@pytest.fixture(scope="module", params=list(ROWS))
def row(request: pytest.FixtureRequest) -> Row:
    return ROWS[request.param]


@pytest.fixture(scope="module")
def model(row: Row) -> LanguageModel:
    return load(row.name)


def some_tokens(model: LanguageModel, shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    return torch.randint(
        model.vocabulary_size, shape, generator=torch.Generator().manual_seed(seed)
    )


def loss(
    model: LanguageModel, parameters: Mapping[str, torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    logits = model.logits(parameters, tokens)[:, :-1].double()
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def test_sizes(row: Row, model: LanguageModel) -> None:
    parameters = model.initial_parameters()
    assert sum(value.numel() for value in parameters.values()) == row.parameters
    assert model.vocabulary_size == row.vocabulary
    assert {value.dtype for value in parameters.values()} == {torch.float32}
    assert model.device == torch.device("cpu")
    assert len(model.tokenizer_fingerprint) == 64
    assert "public text" in model.origin


def test_gradients_are_the_slopes_of_the_loss(model: LanguageModel) -> None:
    # Along the gradient g itself the slope is ‖g‖; a weight that logits took from elsewhere
    # would be missing from the difference, or from the gradient. Float64 inside, so that
    # small steps show.
    parameters = {name: value.double() for name, value in model.initial_parameters().items()}
    tokens = some_tokens(model, (2, 9))
    leaves = {name: value.requires_grad_() for name, value in parameters.items()}
    slopes = torch.autograd.grad(loss(model, leaves, tokens), list(leaves.values()))
    parameters = {name: value.detach() for name, value in leaves.items()}
    for name, gradient in zip(parameters, slopes, strict=True):
        norm = float(gradient.norm())
        length = min(1e-3 / norm, 0.02 * max(1.0, float(parameters[name].norm())))
        step = length * gradient / norm
        up = loss(model, {**parameters, name: parameters[name] + step}, tokens)
        down = loss(model, {**parameters, name: parameters[name] - step}, tokens)
        assert float(up - down) == pytest.approx(2 * norm * length, rel=0.02, abs=2e-6), name


def test_global_generator_is_neither_read_nor_moved(row: Row) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = load(row.name, lora_rank=2)
    tokens = some_tokens(first, (2, 9))
    logits = first.logits(first.initial_parameters(), tokens)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    second = load(row.name, lora_rank=2)
    assert torch.equal(second.logits(second.initial_parameters(), tokens), logits)
    for name, value in second.initial_parameters().items():
        assert torch.equal(value, first.initial_parameters()[name])


def test_other_parameters_than_the_trainable_are_refused(model: LanguageModel) -> None:
    parameters = model.initial_parameters()
    tokens = some_tokens(model, (1, 5))
    with pytest.raises(ValueError, match="unknown"):
        model.logits({**parameters, "stray": torch.zeros(1)}, tokens)
    parameters.popitem()
    with pytest.raises(ValueError, match="missing"):
        model.logits(parameters, tokens)


def test_what_is_saved_is_what_opens(model: LanguageModel, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    parameters = {
        name: value + 0.05 * torch.randn(value.shape, generator=generator)
        for name, value in model.initial_parameters().items()
    }
    tokens = some_tokens(model, (2, 9))
    start = model.initial_parameters()
    model.save(parameters, tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        logits = opened(tokens).logits
    torch.testing.assert_close(logits, model.logits(parameters, tokens), rtol=0, atol=1e-5)
    assert (tmp_path / "model.safetensors").is_file()
    assert all(
        torch.equal(value, start[name]) for name, value in model.initial_parameters().items()
    )


def test_the_saved_folder_loads_as_a_model_with_the_same_tokenizer(
    model: LanguageModel, tmp_path: Path
) -> None:
    model.save(model.initial_parameters(), tmp_path)
    again = load_model(ModelConfig(name_or_path=str(tmp_path)))
    text = ["What ho, thou 'rt come o'er?\nAy."]
    assert again.encode(text) == model.encode(text)
    assert again.tokenizer_fingerprint == model.tokenizer_fingerprint
    assert again.unknown_token_id == model.unknown_token_id
    assert again.initial_parameters().keys() == model.initial_parameters().keys()
    plain = AutoTokenizer.from_pretrained(tmp_path)
    assert plain(text, add_special_tokens=False)["input_ids"][0] == model.encode(text)[0][1:-1]


def test_encode_puts_every_text_between_its_two_tokens(model: LanguageModel) -> None:
    assert isinstance(model, TransformersModel)
    begin, end = model.tokenizer.bos_token_id, model.tokenizer.eos_token_id
    texts = ["", "Once more unto the breach", "breach " * 3000]
    empty, short, long = model.encode(texts)
    assert empty == [begin, end]
    assert (short[0], short[-1]) == (begin, end)
    assert str(model.tokenizer.decode(short[1:-1])).lower() == "once more unto the breach"
    assert len(long) >= 3002
    assert model.encode([]) == []


def test_a_special_token_spelt_out_is_only_text(model: LanguageModel) -> None:
    assert isinstance(model, TransformersModel)
    special = model.tokenizer.eos_token
    (ids,) = model.encode([f"a {special} b"])
    assert model.tokenizer.eos_token_id not in ids[1:-1]


def test_a_pattern_restricts_what_moves(row: Row, model: LanguageModel) -> None:
    some = load(row.name, trainable=row.some)
    parameters = some.initial_parameters()
    everything = model.initial_parameters()
    assert 0 < len(parameters) < len(everything)
    tokens = some_tokens(model, (2, 9))
    torch.testing.assert_close(
        some.logits(parameters, tokens), model.logits(everything, tokens), rtol=0, atol=1e-6
    )
    moved = {name: value + 0.1 for name, value in parameters.items()}
    torch.testing.assert_close(
        some.logits(moved, tokens), model.logits({**everything, **moved}, tokens)
    )


def test_adapters_start_at_the_base_and_are_merged_when_saved(
    row: Row, model: LanguageModel, tmp_path: Path
) -> None:
    adapted = load(row.name, lora_rank=2)
    parameters = adapted.initial_parameters()
    assert all(".lora_" in name for name in parameters)
    tokens = some_tokens(model, (2, 9))
    base = model.logits(model.initial_parameters(), tokens)
    torch.testing.assert_close(adapted.logits(parameters, tokens), base, rtol=0, atol=1e-6)
    generator = torch.Generator().manual_seed(4)
    trained = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in parameters.items()
    }
    logits = adapted.logits(trained, tokens)
    assert not torch.allclose(logits, base, atol=1e-2)
    adapted.save(trained, tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert dict(opened.named_parameters()).keys() == model.initial_parameters().keys()
    with torch.no_grad():
        torch.testing.assert_close(opened(tokens).logits, logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(adapted.logits(parameters, tokens), base, rtol=0, atol=1e-6)


def test_adapters_differ_with_the_seed_and_the_start_does_not(row: Row) -> None:
    first, second = load(row.name, seed=0, lora_rank=2), load(row.name, seed=1, lora_rank=2)
    left, right = first.initial_parameters(), second.initial_parameters()
    assert any(not torch.equal(left[name], right[name]) for name in left)
    tokens = some_tokens(first, (1, 6))
    assert torch.equal(first.logits(left, tokens), second.logits(right, tokens))


def test_nothing_is_written_to_standard_error(
    row: Row, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = load(row.name, lora_rank=2)
    end = model.encode([""])[0][-1]
    model.logits(model.initial_parameters(), torch.full((1, 4), end))
    model.save(model.initial_parameters(), tmp_path)
    load_model(ModelConfig(name_or_path=str(tmp_path)))
    assert capfd.readouterr() == ("", "")
