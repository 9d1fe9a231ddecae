"""Conversations that cannot be trained on: one sentence, exit status 2, nothing written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedsim.config import ModelConfig
from fedsim.errors import ConfigError
from fedsim.materials import load_model
from tests.helpers.commands import fedsim, fedsim_ok, write_config

REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turns') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def turns(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": "the king shall ride"} for role in roles]


CASES: dict[str, tuple[dict[str, Any], str | None, dict[str, Any], str]] = {
    "a role that the template refuses": (
        {"messages": turns("system", "user", "assistant")},
        REFUSES,
        {"messages_column": "messages"},
        r"data.messages_column = 'messages'.*no system turns",
    ),
    "a base without template": (
        {"messages": turns("user", "assistant")},
        None,
        {"messages_column": "messages"},
        r"data.messages_column = 'messages'.*chat_template",
    ),
    "a prompt without completion": (
        {"prompt": "who comes", "completion": "a friend"},
        None,
        {"prompt_column": "prompt"},
        r"prompt_column.*completion_column",
    ),
    "a turn without content": (
        {"messages": [{"role": "user"}]},
        PLAIN,
        {"messages_column": "messages"},
        r"data.messages_column = 'messages'.*content",
    ),
    "messages that are none": (
        {"messages": "hello"},
        PLAIN,
        {"messages_column": "messages"},
        r"data.messages_column = 'messages'",
    ),
    "a template that is no file": (
        {"messages": turns("user", "assistant")},
        "",
        {"messages_column": "messages", "chat_template": "none.jinja"},
        r"data.chat_template = 'none.jinja'",
    ),
    "answers of plain texts": (
        {"body": "the king"},
        None,
        {"text_column": "body", "loss_on": "assistant"},
        r"loss_on",
    ),
    "completions of conversations": (
        {"messages": turns("user", "assistant")},
        PLAIN,
        {"messages_column": "messages", "loss_on": "completion"},
        r"loss_on",
    ),
}


@pytest.fixture(scope="module")
def without_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base whose tokenizer has no chat template."""
    folder = tmp_path_factory.mktemp("base") / "model"
    model = load_model(ModelConfig(pretraining_steps=0), sequence_length=24)
    model.save(model.initial_parameters(), folder)
    (folder / "chat_template.jinja").unlink()
    return folder


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_refused_in_one_sentence(
    case: tuple[dict[str, Any], str | None, dict[str, Any], str],
    without_template: Path,
    tmp_path: Path,
) -> None:
    row, template, columns, message = case
    rows = [json.dumps({"author": f"user {number % 9}", **row}) for number in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    data: dict[str, Any] = {"text_column": None, **columns}
    if template:
        (tmp_path / "template.jinja").write_text(template, encoding="utf-8")
        data["chat_template"] = str(tmp_path / "template.jinja")
    config = tmp_path / "config.toml"
    model = {} if template else {"name_or_path": str(without_template), "pretraining_steps": None}
    try:
        write_config(config, tmp_path / "rows.jsonl", data=data, model=model)
    except ConfigError:  # refused by the config itself: the command must say the same
        good = {key: value for key, value in data.items() if value is not None}
        keys = {"source": str(tmp_path / "rows.jsonl"), "user_column": "author", **good}
        lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        config.write_text("[data]\n" + "\n".join(lines) + "\n", encoding="utf-8")
    done = fedsim("run", config, "--out", tmp_path / "run")
    assert re.search(message, done.complaint, re.DOTALL), done.complaint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["text", "messages"])
def test_half_a_character_of_one_user_does_not_end_everybodys_run(
    kind: str, tmp_path: Path
) -> None:
    """JSON can spell a lone surrogate; U+FFFD stands for it."""
    broken = "a friend \ud83d of mine"
    talk = [*turns("user"), {"role": "assistant", "content": broken}]
    row = {"text": broken} if kind == "text" else {"messages": talk}
    rows = [json.dumps({"author": f"user {number % 9}", **row}) for number in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    data = (
        {"text_column": "text"}
        if kind == "text"
        else {"text_column": None} | {"messages_column": "messages"}
    )
    config = write_config(tmp_path / "config.toml", tmp_path / "rows.jsonl", data=data)
    fedsim_ok("run", config, "--out", tmp_path / "run")
