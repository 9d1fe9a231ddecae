"""`fedsim account`: one JSON object, or one sentence, or one message that names the option."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.trade_off import TradeOff, attacker_sentence
from fedsim.cli.account import app
from fedsim.errors import ConfigError
from fedsim.sampling import (
    BalancedSampling,
    CyclicSampling,
    PoissonSampling,
    TruncatedPoissonSampling,
)

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
        "epsilon": epsilon(RoundCost(PoissonSampling(0.02), 2.0), 100, 1e-5),
        "delta": 1e-5,
        "noise_multiplier": 2.0,
        "sampling_probability": 0.02,
        "rounds": 100,
        "accountant": "pld",
        "relation": "add-or-remove-one user",
        "unit": "user",
        "sampler": "Poisson sampling of users",
        "units_per_user": 1,
        "guaranteed": True,
        "statement": found["statement"],
    }
    assert answer(f"{ULS} --sampling-probability 0.02 --noise-multiplier 2") == found


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_uls_from_epsilon(accountant: str) -> None:
    found = answer(f"{ULS} --sampling-probability 0.02 --epsilon 0.3 --accountant {accountant}")
    assert 0.3 * (1 - 2e-3) <= found["epsilon"] <= 0.3
    assert found["accountant"] == accountant
    cost = RoundCost(PoissonSampling(0.02), found["noise_multiplier"])
    assert found["epsilon"] == epsilon(cost, 100, 1e-5, accountant)


def test_els_both_ways() -> None:
    common = f"{ELS} --group-size 4 --sampling-probability 0.01"
    found = answer(f"{common} --epsilon 0.2")
    assert 0.2 * (1 - 2e-3) <= found["epsilon"] <= 0.2
    assert found["accountant"] == "mixture"
    assert found["units_per_user"] == 4
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


@pytest.mark.parametrize(("delta", "said"), [("0.003", 0), ("0.5", 1)])
def test_a_delta_that_promises_nothing_is_warned_of(delta: str, said: int) -> None:
    command = f"uls --rounds 9 --delta {delta} --users 300 --cohort-size 20 --noise-multiplier 2"
    result = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert result.stderr.count("publishing everything about one user") == said
    assert "for n = 300 users, a number declared public" in result.stderr or not said
    assert "publishing" not in result.stdout


def test_samplers_are_accounted_as_what_they_are() -> None:
    common = f"{ULS} --users 1000 --cohort-size 20 --noise-multiplier 2"
    plain = answer(common)
    capped = answer(f"{common} --sampler truncated-poisson --max-cohort-size 22")
    law = TruncatedPoissonSampling(0.02, 22, 1000)
    assert capped["epsilon"] == epsilon(RoundCost(law, 2.0), 100, 1e-5)
    assert capped["epsilon"] > 1.1 * plain["epsilon"]
    fixed = answer(f"{common} --sampler fixed-size")
    assert (fixed["relation"], fixed["accountant"]) == ("replace-one user", "rdp")
    shuffled = answer(f"{common} --sampler shuffled")
    assert shuffled["epsilon"] == plain["epsilon"]
    assert plain["guaranteed"] and not shuffled["guaranteed"]
    words = CliRunner().invoke(app, shlex.split(f"{common} --sampler shuffled")).stdout
    assert words.startswith("Hypothetical, not a guarantee")
    zeroed = answer(f"{common} --relation zero-out-one")
    assert (zeroed["epsilon"], zeroed["relation"]) == (plain["epsilon"], "zero-out-one user")


def test_group_privacy_says_where_it_diverges() -> None:
    common = "els --rounds 2000 --delta 1e-6 --sampling-probability 0.01 --noise-multiplier 1"
    beyond = f"{common} --group-size 16 --accountant group-privacy"
    found = answer(beyond)
    assert found["epsilon"] is None
    assert found["statement"].startswith("No privacy guarantee: the group-privacy accountant")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{ULS} --sampling-probability 0.1", r"--noise-multiplier = None, --epsilon = None"),
        (f"{ULS} --noise-multiplier 1", "--cohort-size: missing; give the"),
        (
            f"{ULS} --users 5 --cohort-size 1 --sampling-probability 0.1 --noise-multiplier 1",
            "--sampling-probability = 0.1, --users = 5",
        ),
        (f"{ULS} --sampling-probability 0 --noise-multiplier 1", "probability = 0"),
        (
            f"{ULS} --users 5 --cohort-size 6 --noise-multiplier 1",
            "cohort-size = 6: .*of 5 users",
        ),
        (f"{ULS} --sampling-probability 0.1 --noise-multiplier -1", "noise_multiplier = -1.0"),
        (f"{ULS} --sampling-probability 0.1 --epsilon 0", "--epsilon = 0.0"),
        (f"{ULS} --sampling-probability 0.1 --epsilon 1 --accountant moment", "'moment'.*known: "),
        ("uls --rounds 1 --delta 1 --sampling-probability 1 --epsilon 1", "--delta = 1"),
        (f"{ELS} --group-size 2 --sampling-probability 2 --epsilon 1", "probability = 2.0"),
        (
            f"{ELS} --group-size 2 --sampling-probability 0.1 --epsilon 1 --accountant rdp",
            "'rdp'.*cannot account 2 units",
        ),
        (f"{ULS} --sampling-probability 0.1 --epsilon 1 --sampler fixed-size", "whole number"),
        (f"{ULS} --users 9 --cohort-size 2 --epsilon 1 --sampler any", "kind = 'any': known: "),
        (f"{ULS} --users 9 --cohort-size 2 --epsilon 1 --max-cohort-size 3", "cohort_size: only"),
        (
            f"{ULS} --users 100 --cohort-size 2.5 --epsilon 1 --sampler fixed-size",
            "--cohort-size = 2.5: fixed-size sampling needs a whole number",
        ),
        (
            f"{ULS} --sampler balanced --participations 3 --users 9 --cohort-size 3 --epsilon 1",
            "--cohort-size = 3 with participations = 3: each determines the other",
        ),
        (
            f"{ULS} --sampler balanced --users 2000 --cohort-size 63 --epsilon 1",
            "--cohort-size = 63: gives 3.15 rounds of 100 .*; give participations = 3",
        ),
        (f"{ULS} --sampler balanced --epsilon 1", "--cohort-size: missing"),
        (f"{ULS} --sampler cyclic --groups 4 --sampling-probability 0.5 --epsilon 1", "--sampler"),
    ],
)
def test_a_wrong_option_is_named(command: str, message: str) -> None:
    assert_refused(command, message)


def assert_refused(command: str, message: str) -> None:
    result = CliRunner().invoke(app, shlex.split(command))
    assert isinstance(result.exception, ConfigError)
    assert result.stdout == ""
    with pytest.raises(ConfigError, match=message):
        raise result.exception


def test_balanced_both_ways() -> None:
    common = "uls --sampler balanced --rounds 200 --participations 8 --delta 1e-6"
    found = answer(f"{common} --epsilon 2")
    noise = found["noise_multiplier"]
    assert found["epsilon"] == epsilon(RoundCost(BalancedSampling(200, 8), noise), 200, 1e-6)
    assert 1.99 <= found["epsilon"] <= 2.0
    assert found["sampler"] == "balanced sampling of users once in each of 8 passes of 25 rounds"
    assert (found["accountant"], found["guaranteed"]) == ("random-allocation", True)
    assert found["sampling_probability"] == 0.04
    assert answer(f"{common} --noise-multiplier {noise}") == found


def test_balanced_by_a_cohort_size_as_in_a_config() -> None:
    common = "uls --sampler balanced --rounds 100 --delta 1e-6 --noise-multiplier 1"
    found = answer(f"{common} --users 2000 --cohort-size 60")
    assert found == answer(f"{common} --participations 3")
    words = "balanced sampling of users once in each of 3 passes of 33 or 34 rounds"
    assert (found["sampler"], found["sampling_probability"]) == (words, 0.03)


def test_cyclic_with_a_cohort_and_with_whole_groups() -> None:
    common = "uls --sampler cyclic --groups 8 --rounds 200 --delta 1e-6 --noise-multiplier 2"
    some = answer(f"{common} --users 1000 --cohort-size 50")
    cost = RoundCost(CyclicSampling(200, 8, 0.4), 2.0)
    assert some["epsilon"] == epsilon(cost, 200, 1e-6)
    assert some["sampling_probability"] == 0.05
    assert answer(common)["epsilon"] == epsilon(RoundCost(PoissonSampling(1.0), 2.0), 25, 1e-6)


def test_tradeoff_adds_what_an_attacker_can_make_of_it() -> None:
    command = f"{ULS} --sampling-probability 0.02 --noise-multiplier 2 --tradeoff"
    found = answer(command)
    curve = TradeOff.of([(RoundCost(PoissonSampling(0.02), 2.0), 100)], 1e-5)
    assert curve is not None and found["trade_off"] == curve.to_json()
    said = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False).stdout
    assert said.splitlines()[1] == attacker_sentence(curve.to_json(), "user", "add-or-remove-one")
    assert said.splitlines()[2].startswith("Nearly as strong as ")
    assert "-GDP (docs/accounting.md#" in said.splitlines()[2]
    silent = answer(f"{ULS} --sampling-probability 0.02 --noise-multiplier 0 --tradeoff")
    assert silent["trade_off"] is None
