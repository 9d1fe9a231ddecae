"""Private numbers of users and of their examples: the answers, their noise, what they cost."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.config import Config
from fedsim.errors import BudgetSpentError
from fedsim.materials import Materials, load_materials
from fedsim.planner.private_sizes import _BINS, PrivateSizes, _released, private_sizes
from fedsim.runner.shared_ledger import read_shared
from fedsim.sampling import PoissonSampling
from fedsim.seeding import secret_noise_key
from tests.helpers.commands import fedsim
from tests.helpers.light import light_config, write_config


@pytest.fixture(scope="module")
def config(speeches: Path) -> Config:
    return light_config(speeches, privacy={"noise": "secure"})


@pytest.fixture(scope="module")
def materials(config: Config) -> Materials:
    return load_materials(config.seed, config.data, config.model, "cpu", 1 << 100)


def asked(config: Config, materials: Materials, noise: float) -> PrivateSizes:
    return private_sizes(config, materials, noise)


def test_with_little_noise_the_answers_are_true(config: Config, materials: Materials) -> None:
    found = asked(config, materials, 1e-3)
    sizes = materials.split.user_sizes
    assert found.users == pytest.approx(len(sizes), abs=0.02)
    for share, examples in found.quantiles:
        assert (sizes < examples).mean() <= share + 1e-9
        assert (sizes <= examples * 1.19 + 1).mean() >= share - 1e-2


def test_the_noise_has_its_deviation_and_its_price(config: Config, materials: Materials) -> None:
    answers = np.array([asked(config, materials, 3.0).users for _ in range(300)])
    assert answers.std() == pytest.approx(3.0 * math.sqrt(2.0), rel=0.2)
    terms = asked(config, materials, 3.0).terms
    assert terms.epsilon == epsilon(RoundCost(PoissonSampling(1.0), 3.0), 1, 1e-3)
    assert terms.noise == "secure"


def test_a_share_of_users_is_as_far_off_as_is_said(config: Config, materials: Materials) -> None:
    """All bins up to a size add their noise, and so does the number of users, q times."""
    found, sizes = asked(config, materials, 5.0), materials.split.user_sizes
    (share, size), said = found.quantiles[0], found.shares_stddev[0] * max(found.users, 1.0)
    histograms = np.array([_released(sizes, 5.0, secret_noise_key()) for _ in range(3000)])
    up_to = histograms[:, 1:][:, size >= _BINS].sum(axis=1) - share * histograms[:, 0]
    assert up_to.std() == pytest.approx(said, rel=0.06)


def test_it_is_charged_in_a_shared_ledger_or_refused(speeches: Path, tmp_path: Path) -> None:
    shared = {"ledger": str(tmp_path / "shared.json"), "epsilon": 1.0, "delta": 1e-3}
    config = light_config(speeches, privacy={"shared": shared, "noise": "secure"})
    materials = load_materials(config.seed, config.data, config.model, "cpu", 1 << 100)
    asked(config, materials, 20.0)
    ledger = read_shared(tmp_path / "shared.json").ledger
    assert ledger.costs == [(RoundCost(PoissonSampling(1.0), 20.0), 1)]
    asked(config, materials, 20.0)
    assert read_shared(tmp_path / "shared.json").ledger.num_releases == 2  # secure: another answer
    with pytest.raises(BudgetSpentError):
        asked(config, materials, 0.5)


def test_a_seeded_answer_is_the_same_again_and_charged_once(speeches: Path, tmp_path: Path) -> None:
    shared = {"ledger": str(tmp_path / "shared.json"), "epsilon": 8.0, "delta": 1e-3}
    path = write_config(tmp_path / "c.toml", speeches, privacy={"shared": shared})
    first, again = (fedsim("data", "sizes", path, "--json") for _ in range(2))
    answer = json.loads(first.stdout)
    assert answer == json.loads(again.stdout)
    off, size = answer["shares_stddev"][3], answer["quantiles"]["0.9"]
    shown = fedsim("data", "sizes", path).stdout
    assert f"90 ± {100 * off:.3g} % of users: {size}). Each ± is one standard" in shown
    assert read_shared(tmp_path / "shared.json").ledger.num_releases == 1
    said = fedsim("data", "sizes", path, "--noise-multiplier", "11").stdout
    assert "seeded: this holds for nobody who knows the seed" in said
    assert "charged in the shared ledger" in said
    assert (
        "give a finite number > 0"
        in fedsim("data", "sizes", path, "--noise-multiplier", "0").complaint
    )


def test_what_the_answer_rests_on_is_said(speeches: Path, tmp_path: Path) -> None:
    """One user could remove the copies that others have, and move more counts than are paid for."""
    steps = [{"step": "near-duplicates", "within": "data"}]
    path = write_config(tmp_path / "c.toml", speeches, data={"preparation": steps})
    said = fedsim("data", "sizes", path).stdout
    assert "The preparation looked across users (near-duplicates)" in said
    assert "One identifier in the user column is one person" in said
    answer = json.loads(fedsim("data", "sizes", path, "--json").stdout)
    assert any("looked across users" in sentence for sentence in answer["assumptions"])
    plain = write_config(tmp_path / "plain.toml", speeches)
    assert "looked across users" not in fedsim("data", "sizes", plain).stdout


def test_of_many_users_the_noise_is_small_and_not_none(speeches: Path, tmp_path: Path) -> None:
    """Of 140,000 users with noise multiplier 10 each share was said to be off by 0 %."""
    path = write_config(tmp_path / "c.toml", speeches)
    shown = fedsim("data", "sizes", path, "--noise-multiplier", "0.001").stdout
    assert "± 0 %" not in shown and "± 0." in shown


def test_who_is_held_out_by_secret_coins_is_not_counted_in_the_noise(
    speeches: Path, tmp_path: Path
) -> None:
    """Of 200,000 users with 0.3 held out ± 14 was said, and runs had some hundred others."""
    path = write_config(tmp_path / "c.toml", speeches)
    some, secure = "data.held_out_users=0.3", "privacy.noise='secure'"
    said = "Each run holds out other users than this answer"
    assert said in fedsim("data", "sizes", path, "--set", some, "--set", secure).stdout
    assert said not in fedsim("data", "sizes", path, "--set", some).stdout
    assert said not in fedsim("data", "sizes", path, "--set", secure).stdout
