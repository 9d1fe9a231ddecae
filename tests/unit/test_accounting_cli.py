"""`fedsim account`: one JSON object, or one sentence, or one message that names the option."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.cli.account import app
from fedsim.errors import ConfigError

ULS = "uls --rounds 100 --delta 1e-5"
ELS = "els --rounds 100 --delta 1e-5"


def answer(command: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*shlex.split(command), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_uls_from_noise() -> None:
    found = answer(f"{ULS} --users 1000 --cohort-size 20 --noise-multiplier 2")
    assert found == {
        "epsilon": epsilon(RoundCost(0.02, 2.0), 100, 1e-5),
        "delta": 1e-5,
        "noise_multiplier": 2.0,
        "sampling_probability": 0.02,
        "rounds": 100,
        "accountant": "pld",
        "relation": "add-or-remove-one user",
        "unit": "user",
        "sampler": "Poisson sampling of users",
        "group_size": None,
    }
    assert answer(f"{ULS} --sampling-probability 0.02 --noise-multiplier 2") == found


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_uls_from_epsilon(accountant: str) -> None:
    found = answer(f"{ULS} --sampling-probability 0.02 --epsilon 0.3 --accountant {accountant}")
    assert 0.3 * (1 - 2e-3) <= found["epsilon"] <= 0.3
    assert found["accountant"] == accountant
    cost = RoundCost(0.02, found["noise_multiplier"])
    assert found["epsilon"] == epsilon(cost, 100, 1e-5, accountant)


def test_els_both_ways() -> None:
    common = f"{ELS} --group-size 4 --sampling-probability 0.01"
    found = answer(f"{common} --epsilon 0.2")
    assert 0.2 * (1 - 2e-3) <= found["epsilon"] <= 0.2
    assert found["accountant"] == "mixture"
    assert found["group_size"] == 4
    assert found["sampler"] == "Poisson sampling of examples"
    back = answer(f"{common} --noise-multiplier {found['noise_multiplier']}")
    assert back["epsilon"] == found["epsilon"]


def test_without_json_a_sentence() -> None:
    command = f"{ULS} --sampling-probability 0.02 --noise-multiplier 2"
    result = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert result.stdout.startswith("Every user has (ε = ")
    assert result.stdout.count("\n") == 1
    silent = f"{ULS} --sampling-probability 0.02 --noise-multiplier 0"
    result = CliRunner().invoke(app, shlex.split(silent), catch_exceptions=False)
    assert result.stdout.startswith("No privacy guarantee")
    assert answer(silent)["epsilon"] is None


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{ULS} --sampling-probability 0.1", r"--noise-multiplier = None, --epsilon = None"),
        (
            f"{ULS} --sampling-probability 0.1 --noise-multiplier 1 --epsilon 2",
            r"--noise-multiplier = 1.0, --epsilon = 2.0: give one",
        ),
        (f"{ULS} --noise-multiplier 1", "--users = None, --cohort-size = None: give both"),
        (f"{ULS} --users 5 --noise-multiplier 1", "--cohort-size = None: give both"),
        (
            f"{ULS} --users 5 --sampling-probability 0.1 --noise-multiplier 1",
            "--sampling-probability = 0.1 together with --users",
        ),
        (f"{ULS} --sampling-probability 0 --noise-multiplier 1", r"= 0.0: give.*\(0, 1\]"),
        (f"{ULS} --sampling-probability 1.1 --noise-multiplier 1", r"= 1.1: give.*\(0, 1\]"),
        (f"{ULS} --users 5 --cohort-size 6 --noise-multiplier 1", "--cohort-size = 6: .*users = 5"),
        (f"{ULS} --users 5 --cohort-size 0 --noise-multiplier 1", "--cohort-size = 0"),
        (f"{ULS} --users 0 --cohort-size 1 --noise-multiplier 1", "--users = 0"),
        (f"{ULS} --sampling-probability 0.1 --noise-multiplier -1", "--noise-multiplier = -1.0"),
        (f"{ULS} --sampling-probability 0.1 --epsilon 0", "--epsilon = 0.0"),
        (
            f"{ULS} --sampling-probability 0.1 --epsilon 1 --accountant moment",
            "'moment'.*known: mixture, pld, rdp",
        ),
        ("uls --rounds 0 --delta 0.1 --sampling-probability 1 --epsilon 1", "--rounds = 0"),
        ("uls --rounds 1 --delta 0 --sampling-probability 1 --epsilon 1", "--delta = 0.0"),
        ("uls --rounds 1 --delta 1 --sampling-probability 1 --epsilon 1", "--delta = 1.0"),
        (f"{ELS} --group-size 0 --sampling-probability 1 --epsilon 1", "--group-size = 0"),
        (f"{ELS} --group-size 2 --sampling-probability 2 --epsilon 1", "probability = 2.0"),
        (
            f"{ELS} --group-size 2 --sampling-probability 0.1 --epsilon 1 --accountant rdp",
            "'rdp': cannot account 2 units",
        ),
    ],
)
def test_a_wrong_option_is_named(command: str, message: str) -> None:
    result = CliRunner().invoke(app, shlex.split(command))
    assert isinstance(result.exception, ConfigError)
    assert result.stdout == ""
    with pytest.raises(ConfigError, match=message):
        raise result.exception
