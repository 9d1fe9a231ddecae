"""The config: the contract's keys, overrides, errors that help, and TOML there and back."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedsim.config import Config, load_config, parse_config
from fedsim.errors import ConfigError

# The config that the contract shows, value by value.
CONTRACT = """
seed = 0
[data]
source = "shakespeare"
text_column = "text"
sequence_length = 64
held_out_examples = 0.1
held_out_users = 0.0
[model]
name_or_path = "tiny-gpt"
lora_rank = 0
trainable = "all"
[strategy]
name = "uls"
rounds = 100
cohort_size = 128
group_size = 8
selection = "random"
local = { task = "fedsgd" }
clip = { kind = "flat", l2_clip_norm = 1.0 }
estimator = { kind = "fixed" }
[privacy]
epsilon = 8.0
delta = 1e-5
accountant = "pld"
noise = "secure"
[server]
optimizer = "adam"
learning_rate = 0.01
[executor]
grid = "in-process"
workers = 1
gpus_per_worker = 0.0
address = ""
"""
# Values that the contract's comments name next to those above.
ALTERNATIVES = [
    "data.source=texts.jsonl",
    "model.name_or_path=mcmahan-lstm",
    "model.lora_rank=4",
    "strategy.name=non-private",
    "strategy.selection=longest",
    "strategy.selection=shortest",
    'strategy.local={ task = "fedavg", epochs = 1, batch_size = 8, learning_rate = 0.1 }',
    "strategy.clip.kind=per-layer",
    "strategy.clip.normalise=true",
    'strategy.estimator={ kind = "clipped", min_weight = 20.0 }',
    "privacy.noise=secure",
    "server.optimizer=sgd",
    "server.optimizer=adafactor",
]


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    path = tmp_path / "contract.toml"
    path.write_text(CONTRACT, encoding="utf-8")
    return path


def value_at(config: Config, key: str) -> Any:  # noqa: ANN401
    value: Any = config.model_dump(exclude_none=True)
    for part in key.split("."):
        value = value[part]
    return value


def test_the_contracts_config_is_read_as_it_stands(contract: Path) -> None:
    config = load_config(contract)

    def check(given: dict[str, Any], prefix: str) -> None:
        for key, value in given.items():
            if isinstance(value, dict):
                check(value, f"{prefix}{key}.")
            else:
                assert value_at(config, prefix + key) == value

    check(tomllib.loads(CONTRACT), "")


def test_what_the_contract_writes_out_is_the_default(contract: Path) -> None:
    told = load_config(contract)
    silent = parse_config(
        {
            "strategy": {"cohort_size": 128},
            "privacy": {"epsilon": 8.0, "delta": 1e-5, "accountant": "pld"},
            "server": {"optimizer": "adam", "learning_rate": 0.01},  # by default it finds its own
        }
    )
    assert told == silent


@pytest.mark.parametrize("override", ALTERNATIVES)
def test_the_contracts_other_values_are_taken(contract: Path, override: str) -> None:
    key, _, text = override.partition("=")
    value = value_at(load_config(contract, [override]), key)
    if text.startswith("{"):
        assert tomllib.loads(f"value = {text}")["value"].items() <= value.items()
    else:
        assert str(value).lower() == text


def test_every_problem_stands_in_the_one_error() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config({"seed": "x", "server": {"learning_rate": -1.0, "optimiser": "sgd"}})
    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    assert {line.split()[0] for line in lines} == {
        "seed",
        "server.learning_rate",
        "server.optimiser:",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("privacy.epsilon", True),
        ("strategy.rounds", "3"),
        ("seed", False),
        ("data.preparation.0.count", True),
    ],
)
def test_what_is_no_number_becomes_none(key: str, value: object) -> None:
    """An ε of true would be one of 1."""
    raw: dict[str, Any] = {"data": {"preparation": [{"step": "min-examples", "count": value}]}}
    if "preparation" not in key:
        section, _, name = key.rpartition(".")
        raw = {section: {name: value}} if section else {name: value}
    with pytest.raises(ConfigError, match=rf"^{re.escape(f'{key} = {value!r}: give a number')}$"):
        parse_config(raw)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("seed=7", 7),
        ("seed = 7", 7),
        ("server.learning_rate=1e-3", 0.001),
        ("data.source=plays/all.jsonl", "plays/all.jsonl"),
        ("data.source='with space'", "with space"),
        ('data.source="with space"', "with space"),
        ("data.source=a=b", "a=b"),
        ("data.source=C:\\texts", "C:\\texts"),
        ("executor.address=", ""),
        ("strategy.clip.normalise=true", True),
        ("strategy.local.task=fedavg", "fedavg"),
        ('strategy.local={task="fedavg", epochs=3}', None),
        ("model.pretraining_steps=0", 0),
    ],
)
def test_overrides(contract: Path, override: str, value: object) -> None:
    config = load_config(contract, [override])
    key = override.partition("=")[0].strip()
    if value is None:
        assert value_at(config, "strategy.local.epochs") == 3
    else:
        assert value_at(config, key) == value


def test_an_override_makes_the_section_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.touch()
    config = load_config(
        path, ["strategy.estimator.kind=clipped", "strategy.estimator.min_weight=5"]
    )
    assert config.strategy.estimator.model_dump() == {"kind": "clipped", "min_weight": 5.0}
    assert load_config(path) == Config()


@pytest.mark.parametrize("content", [b"seed = = 1", b"[data", b"\xff\xfe"], ids=repr)
def test_a_file_that_is_not_toml(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        load_config(path)
