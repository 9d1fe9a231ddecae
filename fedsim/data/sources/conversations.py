"""Conversations of a source as one JSON text each, for the encoder of chat data."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from fedsim.errors import ConfigError, kind_of
from fedsim.utils.json_text import parse_json

_WANTED = "lists of messages, each with a role and a content that are strings"


class RowError(ValueError):
    """A row is not a conversation: has the config key and value, the row's content, and a cure."""


class RefusedError(ConfigError):
    """The chat template refuses a conversation: has the config key and value, and the reason."""

    def __str__(self) -> str:
        return ": ".join(self.args)


def messages_text(value: object, field: str) -> str | None:
    """Return `{"messages": …}` for a list of messages; None for a null, "" without any content.

    Args:
        value: a list of mappings with a `role` and a `content`, both strings, or its JSON. With
            `tool_calls`, the content may be null. Other keys are dropped, except those that name
            the call that a tool answers.
        field: config key and value, for errors.

    Raises:
        RowError: `value` has another form.
    """
    messages = _messages(value, field)
    if not messages or not _say_something(messages):
        return None if messages is None else ""
    return json.dumps({"messages": messages}, ensure_ascii=False)


def answer_text(prompt: object, completion: object, prompts: str, completions: str) -> str | None:
    """Return `{"prompt": …, "completion": …}` for two strings or two lists of messages.

    A null in either gives None; an empty completion gives "".

    Args:
        prompt: a string or a list of messages.
        completion: the same type as the prompt.
        prompts: config key and value of the prompts, for errors.
        completions: config key and value of the completions, for errors.

    Raises:
        RowError: a value has another type, or the two types differ.
    """
    if prompt is None or completion is None:
        return None
    if not (isinstance(prompt, str) and isinstance(completion, str)):
        if isinstance(prompt, str) or isinstance(completion, str):
            wanted = "strings in both, or lists of messages in both"
            raise RowError(f"{prompts}, {completions}", "only one of them is a string", wanted)
        prompt, completion = _messages(prompt, prompts), _messages(completion, completions)
    if isinstance(prompt, str) and isinstance(completion, str):
        prompt, completion = whole_text(prompt), whole_text(completion)
    if not completion or (isinstance(completion, list) and not _say_something(completion)):
        return ""
    return json.dumps({"prompt": prompt, "completion": completion}, ensure_ascii=False)


def contents(conversation: str) -> str:
    """Return the contents of all messages of a conversation, joined by line ends."""
    texts: list[str] = []
    for part in json.loads(conversation).values():
        texts += [part] if isinstance(part, str) else [m["content"] or "" for m in part]
    return "\n".join(texts)


def _say_something(messages: list[dict[str, Any]]) -> bool:
    return any(
        (message["content"] or "").strip() or "tool_calls" in message for message in messages
    )


def _messages(value: object, field: str) -> list[dict[str, Any]] | None:
    if isinstance(value, str):  # a cell of a CSV
        try:
            value = parse_json(value)
        except ValueError:
            raise RowError(field, "a string", _WANTED) from None
    if value is None:
        return None
    if not isinstance(value, list):
        raise RowError(field, kind_of(value), _WANTED)
    return [_message(message, number, field) for number, message in enumerate(value, start=1)]


def _message(message: Any, number: int, field: str) -> dict[str, Any]:  # noqa: ANN401
    if not isinstance(message, dict):
        raise RowError(field, f"message {number} is {kind_of(message)}", _WANTED)
    calls = message.get("tool_calls")
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            if key == "content" and calls and message.get(key) is None:
                continue
            raise RowError(field, f"message {number} has no {key} that is a string", _WANTED)
    content = message.get("content")
    kept = {"role": message["role"], "content": content and whole_text(content)}
    if calls:
        kept["tool_calls"] = [_call(call) for call in calls] if isinstance(calls, list) else calls
    elif message["role"] == "tool":
        kept |= {key: message[key] for key in ("name", "tool_call_id") if message.get(key)}
    return kept


def _call(call: Any) -> Any:  # noqa: ANN401  (the chat template decides its form)
    """Return a call with its arguments as an object instead of JSON, as templates expect."""
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        with suppress(ValueError):
            return {
                **call,
                "function": {**function, "arguments": parse_json(function["arguments"])},
            }
    return call


def whole_text(text: str) -> str:
    """Return the text with each lone surrogate replaced by U+FFFD.

    JSON can contain lone surrogates, but tokenizers refuse them; one text must not end the run.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
