"""A package of somebody else's, installed beside fedsim, is reached through entry points alone."""

from __future__ import annotations

import ast
import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
from tests.third_party.fedsim_example.by_size import by_size
from tests.third_party.fedsim_example.byte_model import ByteModel, load
from tests.third_party.fedsim_example.csv_tracker import CsvTracker
from tests.third_party.fedsim_example.proximal import Proximal

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


@pytest.fixture(scope="module")
def config(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(
        tmp_path_factory.mktemp("config") / "theirs.toml",
        speeches,
        model={"name_or_path": "example-bytes", "pretraining_steps": None, "trainable": "all"},
        strategy={"name": "uls-by-size"},
        privacy={"declared_num_users": 24},
        server={"optimizer": "adam", "learning_rate": 0.01},
        training={"trackers": ("example-csv",)},
    )


@pytest.fixture(scope="module")
def finished(installed: Path, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "theirs"
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "fedsim.cli.main", "run", config, "--out", run],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert fedsim.load_report(run).privacy.statement in done.stdout
    return run


def test_strategy_model_and_tracker_make_a_run(finished: Path) -> None:
    report = fedsim.load_report(finished)
    assert (report.name, report.model.name) == ("uls-by-size", "example-bytes")
    assert report.privacy.noise_multiplier == 1.0
    # 24 users at q = 1/4 and a bound of 0.5: the noise is the plan's, not the strategy's.
    # It includes the tolerance for rounding.
    assert 1.0 < (report.privacy.noise_stddev or 0.0) / (1.0 * 0.5 / 6.0) < 1.004
    assert report.privacy.epsilon == pytest.approx(
        fedsim.epsilon(fedsim.RoundCost(fedsim.PoissonSampling(0.25), 1.0, 1), 4, 1e-3), rel=1e-3
    )
    with (finished / "losses.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = fedsim.load_metrics(finished)
    assert [int(row["round"]) for row in rows] == [line.round for line in lines]
    # A round in 1,000 draws nobody, and has no loss.
    losses = ["" if line.train_loss is None else str(line.train_loss) for line in lines[1:]]
    assert [row["train_loss"] for row in rows[1:]] == losses


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
    promised = f"both count, added up: {statement}"
    assert promised in done.stdout
    assert promised in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")


def test_a_task_of_theirs_is_held_near_the_server(speeches: Path) -> None:
    """The first step feels no pull; where a step undoes the last, the last one alone is left."""
    config = small_config(speeches)
    materials = fedsim.load_materials(config.seed, config.data, config.model, "cpu")
    parameters = materials.model.initial_parameters()

    def moved(steps: int, pull: float) -> dict[str, torch.Tensor]:
        task = Proximal(materials, group_size=2, steps=steps, learning_rate=0.5, pull=pull)
        return dict(task.update(parameters, task.unit(0, 0), 0).values)

    unit = Proximal(materials, group_size=2, steps=1, learning_rate=0.5, pull=0.0).unit(0, 0)
    one = moved(steps=1, pull=9.0)
    gradient = tasks.mean_gradient(materials.model, parameters, unit).values
    for name, value in one.items():
        torch.testing.assert_close(value, 0.5 * gradient[name], rtol=1e-3, atol=1e-6)
    after_one = {name: value - one[name] for name, value in parameters.items()}
    last = tasks.mean_gradient(materials.model, after_one, unit).values
    for name, value in moved(steps=2, pull=2.0).items():
        torch.testing.assert_close(value, 0.5 * last[name], rtol=1e-3, atol=1e-6)
    lengths = [l2_norm(moved(steps=4, pull=pull)) for pull in (0.0, 0.5, 2.0)]
    assert lengths == sorted(lengths, reverse=True)


def test_their_task_trains_at_the_price_of_user_level_sampling(
    installed: Path, speeches: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    local = {"task": "fedavg", "epochs": 3, "learning_rate": 0.5}
    path = write_config(
        tmp_path / "theirs.toml",
        speeches,
        strategy={"name": "uls-proximal", "local": local},
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
        "The guarantee rests on code that is not fedsim's, too: strategy 'uls-proximal' of "
        f"{package}, task 'example-proximal' of {package}."
    )
    assert rests in privacy.assumptions
    for setting, said in (
        ('strategy.local={task="fedsgd"}', 'strategy.local.task: give "fedavg"'),
        ("strategy.user_weight_cap=2", "strategy.user_weight_cap = 2: 'uls-proximal' does not use"),
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
    assert "'example-csv'" in done.stderr
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


def test_bounds_by_size_are_together_the_bound() -> None:
    layout = {
        "large.weight": torch.zeros(9, 10),
        "large.bias": torch.zeros(9),
        "small": torch.zeros(1),
    }
    clip = by_size(2.0, layout)
    assert clip.bound == pytest.approx(2.0)
    assert clip.l2_clip_norms["large"] == pytest.approx(2.0 * 0.99**0.5)


def test_their_model_looks_at_the_past_alone() -> None:
    model: fedsim.LanguageModel = load(ModelConfig(name_or_path="example-bytes"))
    tokens = torch.tensor(model.encode(["to be or not to be"]))
    changed = tokens.clone()
    changed[0, 10:] = 0
    here, there = (model.logits(model.initial_parameters(), ids) for ids in (tokens, changed))
    assert torch.equal(here[:, :10], there[:, :10])
    assert not torch.equal(here[:, 10:], there[:, 10:])
    assert isinstance(model, ByteModel)


def test_a_run_that_is_taken_up_has_each_row_once(finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "metrics.jsonl", tmp_path)
    CsvTracker(tmp_path, small_config(finished), "").close()
    assert (tmp_path / "losses.csv").read_text() == (finished / "losses.csv").read_text()
