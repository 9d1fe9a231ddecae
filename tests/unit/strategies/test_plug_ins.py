"""What a plug-in gets wrong is refused before an ε is printed that is not of what it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.clipping import NoClip
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.estimators import FixedDenominator
from fedsim.materials import Materials
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.planner.candidates import check_plannable
from fedsim.registry import resolve
from fedsim.sampling import Indices, PoissonSampling, Sampling
from fedsim.strategy import build_plan, plan_terms, private_plan
from tests.conftest import Patch, small_config
from tests.end_to_end.grids.ray_runs import plugin


def built(config: Config, materials: Materials, **changes: Any) -> RoundPlan:  # noqa: ANN401
    users = materials.split.num_users
    fields: dict[str, Any] = {
        "unit": "user",
        "pool": np.arange(users),
        "population": users,
        "sampling": PoissonSampling(0.25),
        "task": TaskSpec(name="fedsgd", options={"group_size": 2}),
        "estimator": FixedDenominator(0.25, users),
    }
    return private_plan(config, materials, **{**fields, **changes})


def examples(materials: Materials, pool: object = None) -> dict[str, Any]:
    return {
        "unit": "example",
        "pool": materials.split.train_examples if pool is None else pool,
        "task": TaskSpec(name="example-gradient"),
    }


Change = Callable[[Materials], dict[str, Any]]
WRONG: dict[str, tuple[Change, str]] = {
    "many examples of a user": (examples, "units_per_user = 1: a user has more units in the pool"),
    "who is not there": (
        lambda m: {"pool": np.arange(m.split.num_users + 1)},
        "give training users only",
    ),
    "held-out text": (
        lambda m: {**examples(m, np.arange(m.store.num_examples)), "units_per_user": 999},
        "give training examples only",
    ),
}


def build(monkeypatch: Patch, config: Config, materials: Materials, plan: object) -> RoundPlan:
    made = type("Made", (), {"build": staticmethod(lambda *_: plan)})
    monkeypatch.setattr("fedsim.strategy.part", lambda *_: made)
    return build_plan(config, materials)


@pytest.mark.parametrize(("change", "complaint"), WRONG.values(), ids=WRONG)
def test_a_plan_whose_price_is_not_that_of_its_pool_is_refused(
    change: Change, complaint: str, speeches: Path, materials: Materials, monkeypatch: Patch
) -> None:
    config = small_config(speeches)
    plan = built(config, materials, **change(materials))
    with pytest.raises(ConfigError, match=rf"strategy.name = 'uls': .*{complaint}"):
        build(monkeypatch, config, materials, plan)


class Everybody(PoissonSampling):
    def draw(self, num_units: int, round: int, coins: object) -> Indices:
        return np.arange(num_units)


class Unpriced(Everybody):
    kind = "unpriced"
    event = Sampling.event


def test_a_part_without_an_event_or_a_bound_gives_no_epsilon(
    speeches: Path, materials: Materials
) -> None:
    config = small_config(speeches)
    with pytest.raises(ConfigError, match="'unpriced' sampling states no event, so there is no ε"):
        built(config, materials, sampling=Unpriced(0.25))
    with pytest.raises(ConfigError, match="with a clip bound of inf: "):
        built(config, materials, clip=NoClip())
    free = small_config(speeches, privacy={"noise_multiplier": 0.0})
    plan = built(free, materials, sampling=Unpriced(0.25), clip=NoClip())
    assert plan_terms(free, plan).sentence().startswith("No privacy guarantee")


def test_a_population_that_no_assumption_names_is_said_to_be_public(
    speeches: Path, materials: Materials
) -> None:
    config = small_config(speeches)
    said = "The number of users that rates and denominators use, 24, is treated as public."
    assert built(config, materials).assumptions == (said,)
    of_another = ("The number of users, 240, is known.", "24 of them are known.")
    assert built(config, materials, assumptions=of_another).assumptions == (*of_another, said)
    own = ("The number of users, 24, is known.",)
    assert built(config, materials, assumptions=own).assumptions == own


def test_a_name_that_two_packages_registered_and_one_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    own = plugin(tmp_path / "one", "build = 1", {"fedsim.strategies uls": "px:build"}, name="px")
    monkeypatch.syspath_prepend(own)
    with pytest.raises(ConfigError, match="'uls' is registered by fedsim-dp and px; uninstall"):
        resolve("strategies", "uls", "strategy.name")
    offers = {"fedsim.strategies lost": "py:nothing", "fedsim.tasks gone": "py.inner:Task"}
    monkeypatch.syspath_prepend(plugin(tmp_path / "two", "build = 1", offers, name="py"))
    with pytest.raises(ConfigError, match=r"strategy.name = 'lost': 'py:nothing' of plug-in 'py'"):
        resolve("strategies", "lost", "strategy.name")
    with pytest.raises(ConfigError, match=r"task = 'gone': 'py.inner:Task' of plug-in 'py'"):
        resolve("tasks", "gone", "task")


def test_the_planner_knows_no_plug_in(speeches: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    offers = {"fedsim.strategies mine": "pz:Mine"}
    code = "class Mine:\n    def build(self): pass"
    monkeypatch.syspath_prepend(plugin(tmp_path, code, offers, name="pz"))
    with pytest.raises(ConfigError, match=r"'mine': the plan compares uls and els"):
        check_plannable(small_config(speeches, strategy={"name": "mine", "cohort_size": None}))
