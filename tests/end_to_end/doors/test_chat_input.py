"""Conversations that cannot be trained on: one sentence, exit status 2, nothing written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedsim.config import ModelConfig
from fedsim.materials import load_model
from tests.helpers.commands import fedsim, fedsim_ok, write_config

REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turns') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)


def turns(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": "the king shall ride"} for role in roles]


def written(folder: Path, row: dict[str, Any]) -> Path:
    rows = [json.dumps({"author": f"user {number % 9}", **row}) for number in range(30)]
    (folder / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return folder / "rows.jsonl"


@pytest.fixture(scope="module")
def without_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base whose tokenizer has no chat template."""
    folder = tmp_path_factory.mktemp("base") / "model"
    model = load_model(ModelConfig(pretraining_steps=0), sequence_length=24)
    model.save(model.initial_parameters(), folder)
    (folder / "chat_template.jinja").unlink()
    return folder


@pytest.mark.parametrize(
    ("roles", "template", "message"),
    [
        (("system", "user", "assistant"), REFUSES, "no system turns"),
        (("user", "assistant"), None, "chat_template"),
    ],
    ids=["a role that the template refuses", "a base without template"],
)
def test_it_is_refused_in_one_sentence(
    roles: tuple[str, ...],
    template: str | None,
    message: str,
    without_template: Path,
    tmp_path: Path,
) -> None:
    source = written(tmp_path, {"messages": turns(*roles)})
    data: dict[str, Any] = {"text_column": None, "messages_column": "messages"}
    model = {"name_or_path": str(without_template), "pretraining_steps": None}
    if template:
        (tmp_path / "template.jinja").write_text(template, encoding="utf-8")
        data["chat_template"], model = str(tmp_path / "template.jinja"), {}
    config = write_config(tmp_path / "config.toml", source, data=data, model=model)
    done = fedsim("run", config, "--out", tmp_path / "run")
    wanted = rf"data.messages_column = 'messages'.*{message}"
    assert re.search(wanted, done.complaint, re.DOTALL), done.complaint
    assert not (tmp_path / "run").exists()


def test_chats_of_other_roles_than_those_that_count(tmp_path: Path) -> None:
    source = written(tmp_path, {"messages": turns("user", "bot")})
    data = {"text_column": None, "messages_column": "messages", "loss_on": "assistant"}
    config = write_config(tmp_path / "config.toml", source, data=data)
    complaint = fedsim("run", config, "--out", tmp_path / "run").complaint
    assert "no usable record; dropped: 30 examples without a token that counts; " in complaint


@pytest.mark.parametrize("kind", ["text", "messages"])
def test_half_a_character_of_one_user_does_not_end_everybodys_run(
    kind: str, tmp_path: Path
) -> None:
    """JSON can spell a lone surrogate; U+FFFD stands for it."""
    broken = "a friend \ud83d of mine"
    talk = [*turns("user"), {"role": "assistant", "content": broken}]
    row = {"text": broken} if kind == "text" else {"messages": talk}
    data = {"text_column": None, f"{kind}_column": kind}
    config = write_config(tmp_path / "config.toml", written(tmp_path, row), data=data)
    fedsim_ok("run", config, "--out", tmp_path / "run")
