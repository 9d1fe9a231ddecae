"""Canary users that are text: trained on as users are, seen in losses alone, and bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsim.audit import black_box
from fedsim.audit.black_box import attack, audit_black_box, train_with
from fedsim.audit.canaries import flip_coins
from fedsim.audit.text_canaries import add_users, copies, draw_texts
from fedsim.config import Config
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from fedsim.materials import Materials, load_materials
from fedsim.plan import RoundPlan
from fedsim.strategy import build_plan
from tests.conftest import small_config

ELS = {"strategy": {"name": "els", "cohort_size": None, "batch_size": 30.0}}
ELS_IN_TURN = {"strategy": ELS["strategy"] | {"sampling": {"kind": "cyclic", "groups": 2}}}
BALANCED = {
    "strategy": {"cohort_size": None, "sampling": {"kind": "balanced", "participations": 2}}
}
LORA = {"model": {"trainable": "all", "lora_rank": 2}}
WHOLE = {"model": {"trainable": "all"}}
LIMIT_OF_200 = stats.binom.ppf(1 - 1e-4, 200, 0.05)
HELD_OUT = {"data": {"held_out_examples": 0.4, "held_out_rule": "last"}}


def claiming(speeches: Path, epsilon: float, **sections: dict[str, Any]) -> Config:
    """Return a run of everybody in each of 3 rounds, that claims so much at δ = 10⁻⁶.

    Of short texts where hundreds of canaries are trained on: theirs are one token again and again.
    """
    least: dict[str, dict[str, Any]] = {
        "data": {"sequence_length": 10},
        "model": {"trainable": "wte"},
        "strategy": {"cohort_size": 24, "rounds": 3},
        "privacy": {"epsilon": epsilon, "noise_multiplier": None, "delta": 1e-6},
        "server": {"optimizer": "sgd", "learning_rate": 0.3},
    }
    for name, section in sections.items():
        least[name] = {**least.get(name, {}), **section}
    return small_config(speeches, **least)


def test_a_text_is_one_token_of_its_own_again_and_again(materials: Materials) -> None:
    texts = draw_texts(materials.model, 300, 24, 1)
    assert texts.shape == (300, 24)
    begin, end = materials.model.encode([""])[0]
    assert set(texts[:, 0].tolist()) == {begin}
    assert (texts[:, 1:] == texts[:, 1:2]).all()
    assert len(set(texts[:, 1].tolist()) - {begin, end}) == 300
    again = draw_texts(materials.model, 300, 24, 1)
    np.testing.assert_array_equal(texts, again)
    assert (draw_texts(materials.model, 300, 24, 2) != texts).any()


@pytest.mark.parametrize("sections", [{}, HELD_OUT], ids=["a tenth held out", "the last 0.4"])
def test_canaries_are_users_behind_the_others_who_stay_as_they_are(
    speeches: Path, tmp_path: Path, sections: dict[str, Any]
) -> None:
    config = small_config(speeches, **sections)
    found = load_materials(config.seed, config.data, config.model, "cpu")
    texts, included = draw_texts(found.model, 6, 24, 0), np.array([0, 1, 1, 0, 0, 1]) > 0
    add_users(found, texts, included, copies(config), tmp_path / "store")
    store = TokenStore.open(tmp_path / "store")
    assert store.num_users == found.store.num_users + 3
    for example in range(found.store.num_examples):
        np.testing.assert_array_equal(store.example(example), found.store.example(example))
    for place, canary in enumerate([1, 2, 5]):
        for example in store.user_examples(found.store.num_users + place):
            np.testing.assert_array_equal(store.example(int(example)), texts[canary])
    data = config.data.model_copy(update={"source": str(tmp_path / "store")})
    with_them = load_materials(config.seed, data, config.model, "cpu")
    real = len(found.split.train_examples)
    np.testing.assert_array_equal(with_them.split.train_examples[:real], found.split.train_examples)
    assert (with_them.split.user_sizes[-3:] >= config.strategy.group_size).all()


@pytest.mark.parametrize(
    ("sections", "least"),
    [({}, 0.95), (ELS, 0.95), (LORA, 0.7), (WHOLE, 0.8), (BALANCED, 0.95), (ELS_IN_TURN, 0.9)],
    ids=["uls", "els", "LoRA", "all", "balanced", "els, cyclic"],
)
def test_with_hardly_any_noise_losses_tell_the_coins(
    speeches: Path, sections: dict[str, Any], least: float
) -> None:
    """For both strategies, and whatever is trained: chance would be 0.5, give or take 0.09."""
    config = claiming(speeches, 1e4, data={"sequence_length": 24}, **sections)
    done = attack(config, 40, 0)
    higher = done.scores[done.included][:, None] > done.scores[~done.included]
    assert higher.mean() > least


def test_the_plan_stays_but_for_who_is_there(
    speeches: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[RoundPlan] = []

    def watched(_: Config, _found: Materials, plan: RoundPlan, *_rest: object) -> None:
        seen.append(plan)
        raise InterruptedError  # before the first round

    monkeypatch.setattr(black_box, "build_executor", watched)
    for sections in ({}, ELS):
        config = claiming(speeches, 4.0, **sections)
        found = load_materials(config.seed, config.data, config.model, "cpu")
        plan = build_plan(config, found)
        texts, included = draw_texts(found.model, 20, 10, 0), flip_coins(20, 0)
        for coins in (included, ~included):
            with pytest.raises(InterruptedError):
                train_with(config, found, plan, texts, coins)
            planted = seen.pop()
            more = coins.sum() * plan.units_per_user
            assert len(planted.pool) == len(plan.pool) + more
            np.testing.assert_array_equal(planted.pool[: len(plan.pool)], plan.pool)
            assert (planted.cost, planted.noise_stddev) == (plan.cost, plan.noise_stddev)
            assert (planted.estimator, planted.seed) == (plan.estimator, plan.seed)
    assert "the data have" not in caplog.text  # nobody declared a number


@pytest.fixture(scope="module")
def config(speeches: Path) -> Config:
    return claiming(speeches, 4.0)


def test_a_real_run_is_bounded_below_its_claim_and_above_nothing(
    speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = claiming(speeches, 16.0)
    done = attack(config, 400, 0)
    monkeypatch.setattr(black_box, "attack", lambda *_: done)
    audit = audit_black_box(config, 400)
    assert 0.5 < audit.bound.epsilon <= audit.claimed_epsilon
    assert audit.holds
    assert (audit.method, audit.bound.canaries) == ("f-dp", 400)
    assert audit.p_value is not None
    plain = audit_black_box(config, 400, method="steinke")
    assert 0.0 < plain.bound.epsilon <= audit.bound.epsilon
    assert plain.p_value is None
    assert plain.included == audit.included


def test_a_run_with_a_tenth_of_its_noise_is_refuted(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of 4 stays, the noise does not: losses of one final model tell.

    Of 120 guesses all were right, by which (ε, δ)-DP shows no more than about log(120/log(80)).
    """
    honest = RoundPlan.noise_stddev.func  # type: ignore[attr-defined]
    monkeypatch.setattr(RoundPlan, "noise_stddev", property(lambda plan: honest(plan) / 10.0))
    done = attack(config, 600, 0)
    monkeypatch.setattr(black_box, "attack", lambda *_: done)
    audit = audit_black_box(config, 600)
    assert not audit.holds
    assert audit.p_value is not None and audit.p_value < 0.05
    assert audit.bound.epsilon > 0.99 * audit.claimed_epsilon
    assert 2.0 < done.bound("steinke")[0].epsilon < audit.bound.epsilon


def test_coins_that_nobody_looked_at_are_not_guessed(speeches: Path) -> None:
    """The scores of a run that gives away its own against 200 fresh throws show nothing."""
    config = claiming(speeches, 30.0)
    done = attack(config, 200, 0)
    rng, shown = np.random.default_rng(0), 0
    for _ in range(200):
        fresh = black_box.Attack(config, done.plan, done.delta, done.scores, rng.random(200) < 0.5)
        shown += fresh.bound("steinke")[0].epsilon > 0.0
    assert shown <= LIMIT_OF_200
    assert done.bound("steinke")[0].epsilon > 0.0


SEARCHED = {
    "data": {"held_out_examples": 0.4},
    "privacy": {"search": {"trials": 4.0}},
    "training": {"private_evaluation": {}},
}
KANDPAL = {"data": {"canaries": {"num_users": 2, "num_examples": 2, "shared_tokens": 2}}}


@pytest.mark.parametrize(
    ("sections", "arguments", "complaint"),
    [
        ({"privacy": {"noise_multiplier": 0.0}, "strategy": {"name": "non-private"}}, {}, "no ε"),
        ({"strategy": {"sampling": {"kind": "fixed-size"}}}, {}, "fixed-size"),
        (KANDPAL, {}, "data.canaries"),
        (SEARCHED, {}, "privacy.search: an audit tests one training"),
        ({}, {"num_canaries": 1}, "--canaries = 1"),
        ({}, {"num_canaries": 1999}, "--canaries = 1999: .* has 1998"),
    ],
)
def test_what_cannot_be_audited_so_is_refused(
    speeches: Path, sections: dict[str, Any], arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        audit_black_box(small_config(speeches, **sections), **{"num_canaries": 10, **arguments})
