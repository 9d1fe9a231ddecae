"""Encoders that go to other processes give the ids that transformers gives."""

import pickle
import subprocess
import sys

import pytest
from transformers import PreTrainedTokenizerFast

from fedsim.clients.models.encoders import encoder_of
from fedsim.clients.models.tokenizers import END_OF_TEXT, byte_pair_tokenizer, word_tokenizer

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


def by_transformers(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    encoded = tokenizer(TEXTS, add_special_tokens=False, split_special_tokens=True, verbose=False)
    return [[1, *ids, 2] for ids in encoded["input_ids"]]


def test_it_is_what_transformers_does(tokenizer: PreTrainedTokenizerFast) -> None:
    expected = by_transformers(tokenizer)
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.backend_tokenizer.enable_padding()
    encode = encoder_of(tokenizer.backend_tokenizer.to_str(), 1, 2)
    assert encode(TEXTS) == expected
    assert pickle.loads(pickle.dumps(encode))(TEXTS) == expected  # noqa: S301
    assert encode([]) == []
    assert encode.tokenizer.truncation is None


def test_an_encoder_opens_without_transformers(tokenizer: PreTrainedTokenizerFast) -> None:
    message = pickle.dumps(encoder_of(tokenizer.backend_tokenizer.to_str(), 1, 2))
    code = (
        "import pickle, sys; encode = pickle.load(sys.stdin.buffer); encode(['x']); "
        "sys.exit('transformers' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], input=message, check=False).returncode == 0
