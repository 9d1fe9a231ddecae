"""Encode conversations with a chat template, and mark the tokens that count in the loss."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from fedsim.data.sources.conversations import RefusedError
from fedsim.errors import ConfigError

Ids = npt.NDArray[np.int64]
Messages = list[dict[str, Any]]
Span = tuple[int, int]

_TODAY = re.compile(r"""strftime_now\s*\(\s*((['"])[^'"]*\2)\s*\)""")
_ASKED = re.compile(r"strftime_now(?!\s+is\s+(not\s+)?defined)")
_MARK = re.compile(r"{%-?\s*generation\s*-?%}")


@dataclass(frozen=True)
class ChatEncoder:
    """Encode conversations in the format of `fedsim.data.sources.conversations`.

    Lists of messages go through the chat template. It may contain special tokens, and it alone
    places begin and end tokens. With `wraps`, a prompt and a completion that are strings become a
    user's and an assistant's message. Without it, they are joined unchanged, between a begin and an
    end token, and special tokens spelt out in them are read as text.

    Attributes:
        tokenizer: tokenizer of the package `tokenizers`, without truncation and padding.
        begin: id before a text that does not use the template.
        end: id after such a text.
        template: Jinja source; None if only strings are encoded.
        special: special tokens that a template may use by name, such as "bos_token".
        wraps: whether strings go through the template.
        loss_on: "all"; "assistant": the assistant's turns with their end tokens, as marked by
            {% generation %} in the template, else the text that a turn adds to the template's
            prompt for an answer; "completion": the text after the prompt.
        field: key and value in the config, for errors.
    """

    tokenizer: Tokenizer
    begin: int
    end: int
    template: str | None
    special: Mapping[str, Any]
    wraps: bool
    loss_on: str
    field: str

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each conversation, with -1 - id for tokens that do not count.

        Raises:
            RefusedError: the template refuses a conversation, or renders earlier turns differently
                once later turns follow.
            ConfigError: messages without a template.
        """
        return [self._encoded(**json.loads(text)) for text in texts]

    def _encoded(
        self,
        messages: Messages | None = None,
        prompt: Messages | str | None = None,
        completion: Messages | str | None = None,
    ) -> Ids:
        if isinstance(prompt, str) and isinstance(completion, str):
            if not self.wraps:
                return self._of_strings(prompt, completion)
            prompt = [{"role": "user", "content": prompt}]
            completion = [{"role": "assistant", "content": completion}]
        if isinstance(prompt, list) and isinstance(completion, list):
            whole = self._rendered(prompt + completion)
            beginning = self._rendered(prompt, answering=True)
            if not (whole.startswith(beginning) or whole.startswith(self._rendered(prompt))):
                raise self._rewritten("the completion", "render them as they were")
            ids, before = self._tokens(whole).ids, self._tokens(beginning).ids
            return self._counting(ids, np.arange(len(ids)) >= _common(before, ids))
        assert messages is not None  # noqa: S101  (what the source writes)
        if self.loss_on == "all":
            return np.array(self._tokens(self._rendered(messages)).ids, np.int64)
        text, spans = self._answers(messages)
        encoding = self._tokens(text)
        starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
        counts = np.zeros(len(starts), np.bool_)
        for first, last in spans:
            counts |= (starts < last) & (ends > first)
        return self._counting(encoding.ids, counts)

    def _of_strings(self, prompt: str, completion: str) -> Ids:
        self.tokenizer.encode_special_tokens = True
        before = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        whole = self.tokenizer.encode(prompt + completion, add_special_tokens=False).ids
        ids = [self.begin, *whole, self.end]
        return self._counting(ids, np.arange(len(ids)) >= _common([self.begin, *before], ids))

    def _counting(self, ids: Sequence[int], counts: npt.NDArray[np.bool_]) -> Ids:
        tokens = np.array(ids, np.int64)
        return tokens if self.loss_on == "all" else np.where(counts, tokens, ~tokens)

    def _tokens(self, text: str) -> Encoding:
        self.tokenizer.encode_special_tokens = False
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _answers(self, messages: Messages) -> tuple[str, list[Span]]:
        """Return the rendered conversation, and the spans of the assistant's turns in it."""
        marked, spans = self._render(messages)
        if spans:
            return marked, spans
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._rendered(messages[:number], answering=True)
            last = number + 1 == len(messages)  # the last turn is already rendered
            until = marked if last else self._rendered(messages[: number + 1])
            if not (until.startswith(before) and marked.startswith(until)):
                raise self._rewritten("the assistant's", "mark them with {% generation %}")
            spans.append((len(before), len(until)))
        return marked, spans

    def _rewritten(self, whose: str, remedy: str) -> RefusedError:
        return RefusedError(
            self.field,
            "the chat template renders earlier turns differently once later turns follow, "
            f"so {whose} tokens cannot be found; {remedy}, and give it as data.chat_template",
        )

    def _rendered(self, messages: Messages, *, answering: bool = False) -> str:
        return self._render(messages, answering=answering)[0]

    def _render(self, messages: Messages, *, answering: bool = False) -> tuple[str, list[Span]]:
        """Return the text, and the spans of characters that {% generation %} marks."""
        if self.template is None:
            raise ConfigError(
                f"{self.field}: the model's tokenizer has no chat template; give one as "
                "data.chat_template, a Jinja file, or use an instruction-tuned model"
            )
        template = _of_one_day(self.template, self.field)
        if "tool_calls" not in self.template and any("tool_calls" in m for m in messages):
            raise RefusedError(self.field, "the chat template does not support tool calls")
        try:
            rendered: Any = render_jinja_template(
                conversations=[messages],
                chat_template=template,
                return_assistant_tokens_mask=_MARK.search(self.template) is not None,
                add_generation_prompt=answering,
                **self.special,
            )
        except Exception as error:  # a template is a program and may raise any error
            reason = f"the chat template refuses a conversation: {self._own_words(error)}"
            raise RefusedError(self.field, reason) from None
        texts, spans = rendered
        return texts[0], [(int(first), int(last)) for first, last in next(iter(spans), ())]

    def _own_words(self, error: Exception) -> str:
        """Return the error's text only if it is the template's; others may quote a conversation."""
        words = str(error).split("\n")[0].strip()
        own = bool(words) and words in (self.template or "")
        return words if own else f"{type(error).__name__} (its text may quote the conversation)"


@lru_cache(maxsize=8)
def _of_one_day(template: str, field: str) -> str:
    """Return the template with a fixed date: a text must give the same tokens on every day.

    Today's date is replaced by the default date of Llama 3.2's template.

    Raises:
        ConfigError: the template asks for the date without a literal format.
    """
    dated = _TODAY.sub(lambda call: datetime(2024, 7, 26).strftime(call[1]), template)
    if _ASKED.search(dated):
        raise ConfigError(
            f"{field}: the chat template asks for today's date without a literal "
            "strftime_now('FORMAT'), so the same text would give other tokens tomorrow; write a "
            "date in it, and give it as data.chat_template"
        )
    return dated


def _common(prompt: Sequence[int], whole: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(prompt, whole, strict=False))
    return next((place for place, (own, other) in pairs if own != other), len(prompt))
