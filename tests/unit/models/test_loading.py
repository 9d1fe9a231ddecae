"""Folders, files and names that others give: what opens, and what the error says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from fedsim.clients.models import loading
from fedsim.clients.models.loading import load
from fedsim.clients.models.quantised import QuantisedLinear
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig
from fedsim.data.building.tokenise import NO_TOKENS
from fedsim.data.config import DataConfig
from fedsim.data.sources.records import EMPTY_TEXT
from fedsim.errors import ConfigError
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials, load_model
from tests.conftest import write_rows

WORDS = ["<unk>", "<s>", "</s>", "<pad>", "a", "b", "c", "ab"]


def tokenizer(special: dict[str, str]) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(dict(zip(WORDS, range(8), strict=True)), "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = {"unk_token": "<unk>", **special}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **tokens)  # type: ignore[no-untyped-call]


def write_llama(folder: Path, special: dict[str, str], vocabulary: int = 8) -> Path:
    """Write a llama of a few hundred weights whose config names a padding id."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(special).save_pretrained(folder)
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return write_llama(tmp_path / "llama", special)


def edit(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | changes), encoding="utf-8")


def load_folder(folder: Path, sequence_length: int = 16, **keys: object) -> TransformersModel:
    config = ModelConfig.model_validate({"name_or_path": str(folder), **keys})
    return load(config, sequence_length=sequence_length)


def test_a_folder_opens_under_its_path(llama: Path) -> None:
    model = load_model(ModelConfig(name_or_path=str(llama)), sequence_length=16)
    assert model.encode(["a c"]) == [[1, 4, 6, 2]]
    assert model.unknown_token_id == 0
    assert model.vocabulary_size == 8
    assert "'llama'" in model.origin
    assert str(llama) not in model.origin  # it is written into what is given away
    tokens = torch.tensor([[1, 4, 6, 2]])
    expected = LlamaForCausalLM.from_pretrained(llama)(tokens).logits
    torch.testing.assert_close(model.logits(model.initial_parameters(), tokens), expected)


def test_runs_on_other_texts_share_it_for_as_long_as_its_files_stay(
    llama: Path, tmp_path: Path
) -> None:
    """And for as long as it is asked for alike: of another length or on other weights it is new."""

    def start(author: str, length: int = 8) -> LanguageModel:
        source = write_rows(tmp_path / f"{author}.jsonl", [{"author": author, "body": "a b"}])
        data = DataConfig(
            source=str(source), user_column="author", text_column="body", sequence_length=length
        )
        return load_materials(0, data, ModelConfig(name_or_path=str(llama)), "cpu").model

    first = start("one")
    assert start("two") is first
    assert start("three", length=16) is not first
    again = start("two")
    torch.manual_seed(1)
    other = LlamaForCausalLM(LlamaConfig.from_pretrained(llama))
    other.save_pretrained(llama)
    changed = start("four")
    assert changed is not again
    name, weights = next(iter(changed.initial_parameters().items()))
    assert not torch.equal(weights, first.initial_parameters()[name])


@pytest.mark.parametrize("kind", ["flash_attention_2", "sdpa", "no_such_kind"])
def test_the_key_decides_on_attention(llama: Path, tmp_path: Path, kind: str) -> None:
    """Whatever a published config.json was written on."""
    edit(llama / "config.json", _attn_implementation=kind, attn_implementation=kind)
    model = load_folder(llama)
    for asked, found in (("eager", model), ("sdpa", load_folder(llama, attention="sdpa"))):
        assert getattr(found.module.config, "_attn_implementation", None) == asked
    model.save(model.initial_parameters(), tmp_path / "saved")
    assert kind not in (tmp_path / "saved" / "config.json").read_text()


def test_a_warning_of_transformers_is_one_line_of_the_log(
    llama: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    load_folder(llama)
    assert caplog.messages == []
    edit(llama / "generation_config.json", do_sample=False, temperature=0.9)
    load_folder(llama)
    (line,) = caplog.messages
    assert line.startswith("The following generation flags are not valid")
    assert "\n" not in line
    assert capfd.readouterr().err == ""


def materials_of_texts(folder: Path, model: Path, *texts: str) -> Materials:
    rows = [{"author": f"{number}", "body": text} for number, text in enumerate(texts)]
    data = DataConfig(
        source=str(write_rows(folder / "texts.jsonl", rows)),
        user_column="author",
        text_column="body",
        sequence_length=8,
    )
    return load_materials(0, data, ModelConfig(name_or_path=str(model)), "cpu")


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "LlamaTokenizer", "Qwen2Tokenizer"])
def test_a_folder_without_a_vocabulary_is_refused(llama: Path, tmp_path: Path, kind: str) -> None:
    (llama / "tokenizer.json").unlink()
    edit(llama / "tokenizer_config.json", tokenizer_class=kind)
    with pytest.raises(ConfigError, match=r"tokenizer"):
        materials_of_texts(tmp_path, llama, "ab", "a")


def test_texts_of_unknown_words_alone_are_refused(llama: Path, tmp_path: Path) -> None:
    known = materials_of_texts(tmp_path, llama, "wer da", "a wer da")
    assert known.store.num_users == 2
    with pytest.raises(ConfigError, match="tokenizer does not fit these texts: every token"):
        materials_of_texts(tmp_path, llama, "wer da", "ein freund")


def test_texts_that_become_no_tokens_are_counted_or_refused(llama: Path, tmp_path: Path) -> None:
    """Of a tokenizer without a word for what it does not know."""
    backend = Tokenizer(models.BPE(dict(zip(WORDS, range(8), strict=True)), [("a", "b")]))
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(llama)  # type: ignore[no-untyped-call]
    some = materials_of_texts(tmp_path, llama, "ab", "δύο", "a", "")
    assert some.store.num_users == 2
    assert some.store.manifest["dropped"] == {NO_TOKENS: 1, EMPTY_TEXT: 1}
    with pytest.raises(ConfigError, match=f"dropped: 2 {NO_TOKENS}; the tokenizer knows none"):
        materials_of_texts(tmp_path, llama, "δύο", "τρία")


@pytest.mark.parametrize(("value", "name"), [("nan", "norm.weight"), ("-inf", "o_proj.weight")])
def test_a_weight_that_is_not_finite_is_named(
    llama: Path, tmp_path: Path, value: str, name: str
) -> None:
    """Also one that is not trained."""
    weights = load_file(llama / "model.safetensors")
    (whole,) = (key for key in weights if key.endswith(name) and "layernorm" not in key)
    weights[whole].view(-1)[3] = float(value)
    save_file(weights, llama / "model.safetensors", metadata={"format": "pt"})
    rows = write_rows(tmp_path / "texts.jsonl", [{"author": "one", "body": "a b"}])
    data = DataConfig(source=str(rows), user_column="author", text_column="body")
    for trainable in ("all", "embed_tokens"):
        config = ModelConfig(name_or_path=str(llama), trainable=trainable)
        with pytest.raises(ConfigError, match=rf": 1 of the .* numbers in {whole} are NaN or inf"):
            load_materials(0, data.model_copy(update={"sequence_length": 8}), config, "cpu")


def test_the_padding_id_is_an_id_like_any_other(llama: Path, tmp_path: Path) -> None:
    model = load_folder(llama)
    tokens = torch.tensor([[1, 3, 4]])
    embedding = "model.embed_tokens.weight"
    gradients = torch.func.grad(lambda given: model.logits(given, tokens).square().sum())(
        model.initial_parameters()
    )
    assert bool(gradients[embedding][3].abs().sum() > 0)
    model.save(model.initial_parameters(), tmp_path / "saved")
    assert LlamaForCausalLM.from_pretrained(tmp_path / "saved").config.pad_token_id == 3


@pytest.mark.parametrize(
    ("special", "expected"), [({"bos_token": "<s>"}, [1, 4, 1]), ({"eos_token": "</s>"}, [2, 4, 2])]
)
def test_one_special_token_stands_at_both_ends(
    tmp_path: Path, special: dict[str, str], expected: list[int]
) -> None:
    assert load_folder(write_llama(tmp_path, special)).encode(["a"]) == [expected]


def test_no_special_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a bos_token nor an eos_token"):
        load_folder(write_llama(tmp_path, {}))


def test_a_tokenizer_with_more_ids_than_the_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 8 ids but the network only 5"):
        load_folder(write_llama(tmp_path, {"bos_token": "<s>"}, vocabulary=5))


def test_sequences_longer_than_the_positions_are_refused(llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.sequence_length = 33: .*at most 32"):
        load_folder(llama, sequence_length=33)


def test_pretraining_steps_belong_to_built_in_models(llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.pretraining_steps = 5: .*leave the key out"):
        load_folder(llama, pretraining_steps=5)


def test_a_base_to_be_rounded_is_read_in_the_type_of_its_files(llama: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16)
    network.save_pretrained(llama)
    model = load_folder(llama, lora_rank=2, quantisation="int8", merged=False)
    assert {value.dtype for value in model.module.parameters()} == {torch.float32}
    assert sum(isinstance(part, QuantisedLinear) for part in model.module.modules()) == 7


def test_weights_that_do_not_fit_the_memory_are_not_read(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "memory_for_this_process", lambda: 1000)
    with pytest.raises(ConfigError, match=r"its weights take \S+ GB of this machine's memory"):
        load_model(ModelConfig(name_or_path=str(llama)))


@pytest.mark.parametrize("name", ["/no/such/folder", "./absent", "models/a/b", "absent.gguf"])
def test_a_path_that_is_not_there_is_refused_without_asking_the_hub(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.name_or_path = .*no such file or folder"):
        load(ModelConfig(name_or_path=name))


def test_adapters_go_where_they_are_sent(llama: Path) -> None:
    model = load_folder(llama, lora_rank=2, lora_target_modules=("o_proj", "up_proj"))
    places = {name.split(".lora_")[0].rpartition(".")[2] for name in model.initial_parameters()}
    assert places == {"o_proj", "up_proj"}


@pytest.mark.parametrize(
    "targets",
    [("c_attn",), ("input_layernorm",), ("o_proj", "up_prj")],
    ids=["absent", "no weight matrix", "one of two absent"],
)
def test_adapters_without_a_place_are_refused(llama: Path, targets: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"model\.lora_target_modules = .*Known: .*o_proj"):
        load_folder(llama, lora_rank=2, lora_target_modules=targets)


def test_a_gguf_file_opens(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "small.gguf"
    write_gguf(gguf.GGUFWriter(str(path), "llama"))
    capfd.readouterr()
    model = load_folder(path)
    assert model.vocabulary_size == 8
    embedding = model.initial_parameters()["model.embed_tokens.weight"]
    torch.testing.assert_close(embedding, torch.full((8, 8), 0.5))
    begin, *_, end = model.encode(["ab"])[0]
    assert (begin, end) == (1, 2)
    moved = {name: value + 0.25 for name, value in model.initial_parameters().items()}
    model.save(moved, tmp_path / "served")
    assert "quantization_config" not in (tmp_path / "served" / "config.json").read_text()
    served = load_folder(tmp_path / "served").initial_parameters()
    assert all(torch.equal(served[name], value) for name, value in moved.items())
    assert capfd.readouterr() == ("", "")


def write_gguf(writer: Any) -> None:  # noqa: ANN401  (the package is optional)
    """Write a llama of one layer, its matrices full of 0.5 and its norms of 1."""
    writer.add_vocab_size(8)
    writer.add_context_length(32)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(3)
    shapes = {"attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8)}
    shapes |= {"ffn_gate": (16, 8), "ffn_up": (16, 8), "ffn_down": (8, 16)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.full(shape, 0.5, np.float32))
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", np.full((8, 8), 0.5, np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_misspelt_built_in_name_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object, **keys: object) -> None:
        raise OSError("the hub cannot be reached")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", unreachable)
    with pytest.raises(ConfigError, match=r"did you mean 'tiny-gpt'\? .*cannot be reached"):
        load_model(ModelConfig(name_or_path="tiny-gtp"))
