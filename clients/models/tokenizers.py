"""The two built-in tokenizers, learned from public text alone.

No vocabulary is learned from the data of a run: it would be a query without a privacy cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from fedsim.data.sources.shakespeare import public_speeches

END_OF_TEXT = "<|endoftext|>"
UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ message.role }}:
{% if message.role == 'assistant' -%}
{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{%- else -%}
{{ message.content }}
{% endif %}
{%- endfor -%}
{%- if add_generation_prompt %}assistant:
{% endif -%}
"""
NO_LIMIT = 10**9  # the data store limits the length of texts


@cache
def public_text() -> tuple[str, ...]:
    """Return the public speeches; each process reads them once."""
    return tuple(public_speeches())


def byte_pair_tokenizer(vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of the public text; it can encode any text.

    Args:
        vocabulary_size: number of ids: 256 bytes, one token for begin, end and padding, and merges.
    """
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(_byte_pairs(vocabulary_size)),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=NO_LIMIT,
    )


def word_tokenizer(vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the public text's most frequent words, in lower case (App. B).

    A word is a run of letters and digits with inner apostrophes, or one punctuation mark. Words
    outside the vocabulary are UNK.

    Args:
        vocabulary_size: maximum number of ids, including UNK, BOS and EOS.
    """
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(_words(vocabulary_size)),
        unk_token=UNKNOWN,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        model_max_length=NO_LIMIT,
    )


@cache
def _byte_pairs(vocabulary_size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _learned(tokenizer, trainer, public_text())


@cache
def _words(vocabulary_size: int) -> str:
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace("’", "'")]
    )
    word = Regex(r"\w+(?:'\w+)*|[^\w\s]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(word, behavior="removed", invert=True)
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary_size, special_tokens=[UNKNOWN, BEGIN, END], show_progress=False
    )
    return _learned(tokenizer, trainer, public_text())


def _learned(tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Sequence[str]) -> str:
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()
