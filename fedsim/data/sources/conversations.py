"""Conversations of a source as one JSON text each, which the encoder of chat data reads."""

from __future__ import annotations

import json
from typing import Any

from fedsim.errors import ConfigError
from fedsim.utils.json_text import parse_json

# Of other forms of conversations. A message may have any key, so no other is shown in an error.
_OTHER_KEYS = ("from", "value", "author", "text", "message")


def messages_text(value: object, field: str) -> str | None:
    """Return `{"messages": …}` of a list of messages; None for a null, "" for an empty list.

    Args:
        value: a list of mappings with a `role` and a `content`, both strings, or that as JSON.
            Other keys are left out.
        field: the config's key and value, for errors.

    Raises:
        ConfigError: it is something else.
    """
    messages = _messages(value, field)
    if not messages:
        return None if messages is None else ""
    return json.dumps({"messages": messages}, ensure_ascii=False)


def answer_text(prompt: object, completion: object, prompts: str, completions: str) -> str | None:
    """Return `{"prompt": …, "completion": …}` of two strings or of two lists of messages.

    A null in either gives None; an empty completion gives "".

    Args:
        prompt: a string or a list of messages.
        completion: of the same kind.
        prompts: the config's key and value of the prompts, for errors.
        completions: those of the completions.

    Raises:
        ConfigError: they are something else, or of two kinds.
    """
    if prompt is None or completion is None:
        return None
    if not (isinstance(prompt, str) and isinstance(completion, str)):
        if isinstance(prompt, str) or isinstance(completion, str):
            raise ConfigError(
                f"{prompts}, {completions}: one holds strings and the other does not; wanted: "
                "strings in both, or lists of messages in both"
            )
        prompt, completion = _messages(prompt, prompts), _messages(completion, completions)
    if isinstance(prompt, str) and isinstance(completion, str):
        prompt, completion = whole_text(prompt), whole_text(completion)
    if not completion:
        return ""
    return json.dumps({"prompt": prompt, "completion": completion}, ensure_ascii=False)


def _messages(value: object, field: str) -> list[dict[str, str]] | None:
    if isinstance(value, str):  # a cell of a CSV
        try:
            value = parse_json(value)
        except ValueError:
            raise _wrong(field, "strings") from None
    if value is None:
        return None
    if not isinstance(value, list):
        raise _wrong(field, f"{type(value).__name__} values")
    return [_message(message, field) for message in value]


def _message(message: Any, field: str) -> dict[str, str]:  # noqa: ANN401  (whatever a row holds)
    if not isinstance(message, dict):
        raise _wrong(field, f"lists of {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not (isinstance(role, str) and isinstance(content, str)):
        known = " and ".join(key for key in _OTHER_KEYS if key in message)
        raise _wrong(field, f"messages with the keys {known}" if known else "other messages")
    return {"role": role, "content": whole_text(content)}


def whole_text(text: str) -> str:
    """Return the text with U+FFFD for half of a character (a lone surrogate), which no file holds.

    JSON can spell one, tokenizers refuse it, and one user's text must not end everybody's run.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _wrong(field: str, what: str) -> ConfigError:
    return ConfigError(
        f"{field}: holds {what}; wanted: lists of messages, each with a role and a content that "
        "are strings"
    )
