"""The two built-in tokenizers, learned from public text alone.

A vocabulary learned from private text would be a query on it that is not accounted for, so none is
ever learned from the data of a run.
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
NO_LIMIT = 10**9  # how long a text may be is the data store's business


@cache
def public_text() -> tuple[str, ...]:
    """Return the public speeches; they are read once a process."""
    return tuple(public_speeches())


def byte_pair_tokenizer(vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of the public text in which any text has its ids.

    Args:
        vocabulary_size: ids in all: 256 bytes, one token that begins, ends and pads, and merges.
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
    """Return the words of the public text, most frequent first, lower-cased (App. B).

    A word is a run of letters and digits with its inner apostrophes; a punctuation mark is a
    word of its own; any other word is UNK.

    Args:
        vocabulary_size: ids at most, UNK, BOS and EOS counted in.
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
