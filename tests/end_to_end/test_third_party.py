"""A package of somebody else's, installed beside fedsim, is reached through entry points alone."""

from __future__ import annotations

import ast
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch

import fedsim
from fedsim.clients import tasks
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError
from fedsim.materials import load_model
from fedsim.tensors import l2_norm
from tests.conftest import small_config
from tests.helpers.commands import Done, write_config
from tests.helpers.commands import fedsim as fedsim_here
from tests.third_party.fedsim_example.byte_model import ByteModel, load
from tests.third_party.fedsim_example.normalised import NormalisedSteps

PACKAGE = Path(__file__).parent.parent / "third_party"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package where nobody else looks; building must not write into our tree."""
    folder = tmp_path_factory.mktemp("third_party")
    source = shutil.copytree(PACKAGE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", "--target", folder / "site", source], check=True)
    return folder / "site"


def with_package(site: Path, *arguments: str | Path) -> Done:
    """Run `fedsim` where the package can be seen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        return fedsim_here(*arguments)


def with_package_written(site: Path, path: Path, source: Path, **sections: Any) -> Path:  # noqa: ANN401
    """Write a config whose parts are the package's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        return write_config(path, source, **sections)


@pytest.fixture(scope="module")
def config(installed: Path, speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_package_written(
        installed,
        tmp_path_factory.mktemp("config") / "theirs.toml",
        speeches,
        model={"name_or_path": "example-bytes", "pretraining_steps": None, "trainable": "all"},
        strategy={
            "sampling": {"kind": "example-growing", "first_share": 0.25},
            "clip": {"kind": "example-smooth", "l2_clip_norm": 0.5, "power": 3.0},
            "estimator": {"kind": "example-cautious", "caution": 1.25},
        },
        privacy={
            "declared_num_users": 24,
            "accountant": "example-orders",
            "num_orders": 60,
            "noise_multiplier": 2.0,
        },
        server={"optimizer": "example-momentum", "learning_rate": 0.01, "momentum": 0.5},
        training={"trackers": ("example-csv",)},
    )


@pytest.fixture(scope="module")
def finished(installed: Path, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "theirs"
    done = with_package(installed, "run", config, "--out", run)
    assert done.returncode == 0, done.stderr
    assert fedsim.load_report(run).privacy.statement in done.stdout
    return run


NAMED = (
    "sampler 'example-growing'",
    "clip 'example-smooth'",
    "estimator 'example-cautious'",
    "accountant 'example-orders'",
    "server optimizer 'example-momentum'",
    "model 'example-bytes'",
)


def test_parts_model_and_tracker_make_a_run(finished: Path) -> None:
    report = fedsim.load_report(finished)
    privacy = report.privacy
    assert (report.name, report.model.name) == ("uls", "example-bytes")
    # 24 users, six at most a round, a bound of 0.5 and a denominator of 1.25 times six: the noise
    # is the plan's, with the tolerance for rounding.
    assert 1.0 < (privacy.noise_stddev or 0.0) / (2.0 * 0.5 / 7.5) < 1.005
    rates = (0.0625, 0.125, 0.1875, 0.25)
    by_hand = dp_accounting.rdp.RdpAccountant(range(2, 62))
    for rate in rates:
        gaussian = dp_accounting.GaussianDpEvent(2.0)
        by_hand.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian))
    assert privacy.epsilon == pytest.approx(by_hand.get_epsilon(1e-3), rel=1e-9)
    (rests,) = [said for said in privacy.assumptions if "proofs of plug-ins" in said]
    assert all(f"{named} of fedsim-example-extension 1.0" in rests for named in NAMED)
    assert 'example-orders {"num_orders": 60}' in privacy.statement
    with (finished / "losses.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = fedsim.load_metrics(finished)
    assert [int(row["round"]) for row in rows] == [line.round for line in lines]
    # A round may draw nobody, and has no loss.
    losses = ["" if line.train_loss is None else str(line.train_loss) for line in lines[1:]]
    assert [row["train_loss"] for row in rows[1:]] == losses


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("strategy.sampling.first_shar=0.5", "first_shar: unknown key; did you mean 'first_share'"),
        ("strategy.clip.power=0.5", "strategy.clip.power = 0.5: give at least 1"),
        ("strategy.sampling.kind='example-grown'", "did you mean 'example-growing'?"),
        ("privacy.relation='replace-one'", "accounts growing cohorts under add-or-remove-one"),
        ("privacy.accountant='pld'", "privacy.num_orders: unknown key"),
    ],
)
def test_their_keys_are_checked_by_their_classes(
    setting: str, said: str, installed: Path, config: Path, tmp_path: Path
) -> None:
    done = with_package(installed, "run", config, "--set", setting, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "run").exists()


def test_what_their_model_saved_opens_again(installed: Path, finished: Path) -> None:
    done = with_package(installed, "evaluate", finished, "--json")
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout)["stages"]["final"]["held_out_examples"]["loss"]
    assert end == pytest.approx(fedsim.load_report(finished).utility.final.loss, rel=1e-5)


def test_their_loader_loses_no_earlier_promise(
    installed: Path, config: Path, finished: Path, tmp_path: Path
) -> None:
    """It says where weights come from; what they were trained on stands in the folder."""
    start = f"model.name_or_path='{finished / 'model'}'"
    done = with_package(
        installed, "run", config, "--set", start, "--set", "strategy.rounds=1", "--out", tmp_path
    )
    assert done.returncode == 0, done.stderr
    statement = fedsim.load_report(finished).privacy.statement
    promised = f"the two δ add up: {statement}"
    assert promised in done.stdout
    assert promised in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")


def test_a_task_of_theirs_takes_steps_of_one_length(speeches: Path) -> None:
    """Each step follows the gradient where the last one ended; no example, no step."""
    config = small_config(speeches)
    materials = fedsim.load_materials(config.seed, config.data, config.model, "cpu")
    parameters = materials.model.initial_parameters()

    def moved(steps: int, empty: bool = False) -> dict[str, torch.Tensor]:
        task = NormalisedSteps(materials, group_size=2, steps=steps, step_length=0.5)
        unit = task.unit(0, 0)
        if empty:
            unit = fedsim.Unit(unit.key, unit.tokens[:0], unit.lengths[:0])
        return dict(task.update(parameters, unit, 0).values)

    unit = NormalisedSteps(materials, group_size=2, steps=1, step_length=0.5).unit(0, 0)
    start = parameters
    for steps in (1, 2):
        gradient = tasks.mean_gradient(materials.model, start, unit).values
        end = {name: value - moved(steps)[name] for name, value in parameters.items()}
        step = {name: value - end[name] for name, value in start.items()}
        assert l2_norm(step) == pytest.approx(0.5, rel=1e-4)
        for name, value in step.items():
            expected = 0.5 * gradient[name] / l2_norm(gradient)
            torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-6)
        start = end
    assert l2_norm(moved(steps=2, empty=True)) == 0.0


def test_their_task_trains_at_the_price_of_user_level_sampling(
    installed: Path, speeches: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    path = with_package_written(
        installed,
        tmp_path / "theirs.toml",
        speeches,
        strategy={"name": "uls-normalised", "steps": 3, "step_length": 0.2},
        privacy={"declared_num_users": 24},
    )
    done = with_package(installed, "run", path, "--out", run)
    assert done.returncode == 0, done.stderr
    privacy = fedsim.load_report(run).privacy
    assert privacy.epsilon == pytest.approx(
        fedsim.epsilon(fedsim.RoundCost(fedsim.PoissonSampling(0.25), 1.0, 1), 4, 1e-3), rel=1e-3
    )
    package = "fedsim-example-extension 1.0"
    rests = (
        "The guarantee rests on the proofs of plug-ins: strategy 'uls-normalised' "
        f"of {package}, task 'example-normalised' of {package}."
    )
    assert rests in privacy.assumptions
    for setting, said in (
        ('strategy.local={task="fedavg"}', "strategy.local: leave it out"),
        ("strategy.user_weight_cap=2", "strategy.user_weight_cap: only name"),
    ):
        wrong = with_package(installed, "run", path, "--set", setting, "--out", tmp_path / "wrong")
        assert wrong.returncode == 2
        assert said in wrong.stderr
        assert not (tmp_path / "wrong").exists()


def test_without_the_package_names_are_refused(
    config: Path, finished: Path, tmp_path: Path
) -> None:
    done = fedsim_here("run", config, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "'example-growing'" in done.stderr
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"fedsim_model in its config.json = 'example-bytes'"):
        load_model(ModelConfig(name_or_path=str(finished / "model")))


def test_the_package_uses_public_names_only() -> None:
    used = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = {alias.name for alias in node.names}
                if node.module == "fedsim.clients.tasks":
                    assert names <= set(tasks.__all__)
                    continue
                assert not node.module.startswith("fedsim."), f"{path.name}: {node.module}"
                used |= names if node.module == "fedsim" else set()
    assert {"RoundPlan", "ModelConfig", "RoundMetrics"} <= used <= set(fedsim.__all__)


def test_their_model_looks_at_the_past_alone() -> None:
    model: fedsim.LanguageModel = load(ModelConfig(name_or_path="example-bytes"))
    tokens = torch.tensor(model.encode(["to be or not to be"]))
    changed = tokens.clone()
    changed[0, 10:] = 0
    here, there = (model.logits(model.initial_parameters(), ids) for ids in (tokens, changed))
    assert torch.equal(here[:, :10], there[:, :10])
    assert not torch.equal(here[:, 10:], there[:, 10:])
    assert isinstance(model, ByteModel)
