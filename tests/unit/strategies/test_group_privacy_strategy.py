"""The strategy group-privacy: the plan of els at another price, named wherever ε is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.accounting.accountants import epsilon
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.materials import Materials
from fedsim.strategy import build_plan
from fedsim.trackers.tracking import epsilon_terms
from tests.conftest import small_config

POOLED: dict[str, Any] = {"name": "group-privacy", "cohort_size": None, "batch_size": 9}


def config_for(speeches: Path, strategy: dict[str, Any], **privacy: object) -> Config:
    kept = {"noise_multiplier": None, "epsilon": 20.0, "delta": 1e-3, **privacy}
    return small_config(speeches, strategy={**POOLED, **strategy}, privacy=kept)


def test_the_noise_keeps_epsilon_by_the_black_box(speeches: Path, materials: Materials) -> None:
    black = build_plan(config_for(speeches, {}), materials)
    assert black.accountant == "group-privacy"
    assert 20 * 0.998 <= epsilon(black.cost, 4, 1e-3, "group-privacy", black.relation) <= 20
    tight = build_plan(config_for(speeches, {}, accountant="mixture"), materials)
    els = build_plan(config_for(speeches, {"name": "els"}), materials)
    assert tight.noise_multiplier == els.noise_multiplier < black.noise_multiplier
    assert black.pool.tolist() == els.pool.tolist()
    assert (black.sampling, black.clip, black.units_per_user) == (els.sampling, els.clip, 3)


def test_every_epsilon_of_a_run_names_the_accountant_that_gave_it(
    speeches: Path, materials: Materials
) -> None:
    """The accountant is the strategy's own where the config names none."""
    for accountant in (None, "mixture"):
        config = config_for(speeches, {}, accountant=accountant)
        terms = epsilon_terms(build_plan(config, materials), config)
        assert f"{accountant or 'group-privacy'} accountant" in terms
        assert "δ = 0.001, for one user, add-or-remove-one user, Poisson sampling of ex" in terms


def test_one_record_a_user_costs_the_same_either_way(speeches: Path, materials: Materials) -> None:
    fixed = {"epsilon": None, "noise_multiplier": 0.5}
    plan = build_plan(config_for(speeches, {"group_size": 1, "batch_size": 5}, **fixed), materials)
    spent = [epsilon(plan.cost, 4, 1e-3, name, plan.relation) for name in (plan.accountant, "pld")]
    # the black box looks at far smaller δ, on a coarser grid: a little looser, never tighter
    assert 0.999 <= spent[0] / spent[1] < 1.1


@pytest.mark.parametrize(
    ("strategy", "privacy", "complaint"),
    [
        (
            {},
            {"epsilon": None, "noise_multiplier": 0.3, "delta": 1e-9},
            "the group-privacy accountant certifies no finite ε at it for 4 rounds",
        ),
        ({}, {"delta": 1e-30}, "'group-privacy' cannot certify this with any noise"),
        ({}, {"accountant": "rdp"}, "cannot account 3 units per user"),
        ({"local": {"task": "fedavg"}}, {}, "strategy.local.task = 'fedavg': "),
        ({"selection": "random-chunk"}, {}, "strategy.selection = 'random-chunk': "),
        ({"cohort_size": 4}, {}, "strategy.cohort_size: only name = "),
    ],
)
def test_what_cannot_be_priced_is_refused(
    strategy: dict[str, Any],
    privacy: dict[str, Any],
    complaint: str,
    speeches: Path,
    materials: Materials,
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build_plan(config_for(speeches, strategy, **privacy), materials)
