"""Conversations of a source as one JSON text each, which the encoder of chat data reads."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from fedsim.errors import ConfigError, kind_of
from fedsim.utils.json_text import parse_json

_WANTED = "lists of messages, each with a role and a content that are strings"


class RowError(ValueError):
    """A row is no conversation: the config's key and value, what the row holds, what is wanted."""


class RefusedError(ConfigError):
    """A conversation that the chat template refuses: the config's key and value, and why.

    Attributes:
        place: which of the records that were tokenised together, from 0.
    """

    place: int = 0

    def __str__(self) -> str:
        return ": ".join(self.args)


def messages_text(value: object, field: str) -> str | None:
    """Return `{"messages": …}` of a list of messages; None for a null, "" where nothing is said.

    Args:
        value: a list of mappings with a `role` and a `content`, both strings, or that as JSON.
            Where there are `tool_calls`, the content may be null. Of other keys, those that tell
            which call a tool answers stay.
        field: the config's key and value, for errors.

    Raises:
        RowError: it is something else.
    """
    messages = _messages(value, field)
    if not messages or not _say_something(messages):
        return None if messages is None else ""
    return json.dumps({"messages": messages}, ensure_ascii=False)


def answer_text(prompt: object, completion: object, prompts: str, completions: str) -> str | None:
    """Return `{"prompt": …, "completion": …}` of two strings or of two lists of messages.

    A null in either gives None; a completion that says nothing gives "".

    Args:
        prompt: a string or a list of messages.
        completion: of the same kind.
        prompts: the config's key and value of the prompts, for errors.
        completions: those of the completions.

    Raises:
        RowError: they are something else, or of two kinds.
    """
    if prompt is None or completion is None:
        return None
    if not (isinstance(prompt, str) and isinstance(completion, str)):
        if isinstance(prompt, str) or isinstance(completion, str):
            wanted = "strings in both, or lists of messages in both"
            raise RowError(f"{prompts}, {completions}", "a string in one alone", wanted)
        prompt, completion = _messages(prompt, prompts), _messages(completion, completions)
    if isinstance(prompt, str) and isinstance(completion, str):
        prompt, completion = whole_text(prompt), whole_text(completion)
    if not completion or (isinstance(completion, list) and not _say_something(completion)):
        return ""
    return json.dumps({"prompt": prompt, "completion": completion}, ensure_ascii=False)


def contents(conversation: str) -> str:
    """Return what is said in a conversation, message after message, a line end between them."""
    said: list[str] = []
    for part in json.loads(conversation).values():
        said += [part] if isinstance(part, str) else [m["content"] or "" for m in part]
    return "\n".join(said)


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


def _call(call: Any) -> Any:  # noqa: ANN401  (what it has to be, the template says)
    """Return a call with its arguments as an object, which templates expect, and not as JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        with suppress(ValueError):
            return {
                **call,
                "function": {**function, "arguments": parse_json(function["arguments"])},
            }
    return call


def whole_text(text: str) -> str:
    """Return the text with U+FFFD for half of a character (a lone surrogate), which no file holds.

    JSON can spell one, tokenizers refuse it, and one user's text must not end everybody's run.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
