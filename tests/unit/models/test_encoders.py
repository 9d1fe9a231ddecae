"""Encoders that go to other processes give the ids that transformers gives."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import CTRLConfig, CTRLLMHeadModel, CTRLTokenizer, PreTrainedTokenizerFast

from fedsim.clients.models.encoders import FastEncoder, SlowEncoder, encoder_of
from fedsim.clients.models.tokenizers import END_OF_TEXT, byte_pair_tokenizer, word_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig

TEXTS = [
    "To be, or not to be",
    f"an {END_OF_TEXT} in the text, </s> and <unk>",
    "",
    "zwölf Boxkämpfer ☂ \n\t jagen",
    "x " * 3000,
]


@pytest.fixture(params=[byte_pair_tokenizer, word_tokenizer])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    made: PreTrainedTokenizerFast = request.param(500)
    return made


def test_fast_is_what_transformers_does(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.backend_tokenizer.enable_padding()
    fast = encoder_of(tokenizer, 1, 2)
    assert isinstance(fast, FastEncoder)
    assert fast(TEXTS) == SlowEncoder(tokenizer, 1, 2)(TEXTS)
    assert pickle.loads(pickle.dumps(fast))(TEXTS) == fast(TEXTS)  # noqa: S301
    assert fast([]) == SlowEncoder(tokenizer, 1, 2)([]) == []
    assert fast.tokenizer.truncation is None


def test_a_fast_encoder_opens_without_transformers(tokenizer: PreTrainedTokenizerFast) -> None:
    message = pickle.dumps(encoder_of(tokenizer, 1, 2))
    code = (
        "import pickle, sys; encode = pickle.load(sys.stdin.buffer); encode(['x']); "
        "sys.exit('transformers' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], input=message, check=False).returncode == 0


def test_a_tokenizer_with_parts_in_python_stays_whole() -> None:
    class Parts:
        def pre_tokenize(self, text: object) -> None: ...

    tokenizer = byte_pair_tokenizer(500)
    backend: Tokenizer = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Parts())
    assert isinstance(encoder_of(tokenizer, 1, 2), SlowEncoder)


def test_tokenizers_with_other_merges_are_two(tmp_path: Path) -> None:
    """Computed by Python, and with the same words, which say nothing of how a text is cut."""
    words = ["<unk>", "<e>", "a@@", "b@@", "c@@", "a", "b", "c", "ab@@", "bc@@", "ab", "bc", "abc"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    special = {"unk_token": "<unk>", "bos_token": "<e>", "eos_token": "<e>"}
    ids, fingerprints = set(), set()
    for merges in ("a b\nb c</w>", "b c</w>\na b"):
        (tmp_path / "merges.txt").write_text(f"#version\n{merges}\n")
        tokenizer = CTRLTokenizer(  # type: ignore[no-untyped-call]
            str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), **special
        )
        config = CTRLConfig(vocab_size=13, n_positions=8, n_embd=4, dff=4, n_layer=1, n_head=1)
        network = CTRLLMHeadModel(config)
        model = TransformersModel(
            network, tokenizer, ModelConfig(), origin="random", sequence_length=8
        )
        ids.add(tuple(model.encode(["abc"])[0]))
        fingerprints.add(model.tokenizer_fingerprint)
    assert len(ids) == len(fingerprints) == 2
