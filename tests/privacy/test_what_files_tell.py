"""The table in docs/privacy.md of what files tell, held against all files that runs write."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

from fedsim.config import load_config
from fedsim.materials import load_materials
from fedsim.noise.gaussian import release_
from fedsim.runner.checkpoint import load_checkpoint
from fedsim.runner.folder import RunFolder
from fedsim.runner.given import with_given
from fedsim.seeding import noise_key
from fedsim.strategy import build_plan
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import small_config
from tests.end_to_end.test_run_identity import holding
from tests.helpers.commands import fedsim as command
from tests.helpers.light import light_config

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
LEDGER = "people.json"
ACCOUNT = (
    *("account", "uls", "--rounds", "9", "--sampling-probability", "0.1"),
    *("--delta", "1e-3", "--noise-multiplier", "1.5"),
)


def table() -> dict[str, str]:
    """The patterns of files, and what stands in the column on what no ε covers."""
    text = PAGE.read_text(encoding="utf-8")
    part = text.split("## What each file tells", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| `")]
    return {pattern: row[-1] for row in rows for pattern in re.findall(r"`([^`]+)`", row[0])}


@pytest.fixture(scope="module")
def place(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache of its own: a seeded run, and all that can be run of a secure one."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSIM_CACHE", str(folder / "cache"))
        for noise in ("seeded", "secure"):
            config = light_config(
                speeches,
                data={"held_out_users": 0.4, "cutting": "split"},
                model={"trainable": "all"},
                strategy={"selection": "highest-perplexity"},
                privacy={
                    "noise": noise,
                    "shared": {
                        "ledger": str(folder / noise / LEDGER),
                        "epsilon": 90.0,
                        "delta": 1e-3,
                    },
                },
                server={"optimizer": "sgd", "learning_rate": 1.0},
                training={"trackers": ["tensorboard", "wandb", "mlflow"]},
            )
            (folder / noise).mkdir()
            (folder / noise / "my.toml").write_text(config.to_toml(), encoding="utf-8")
            run = folder / noise / "run"
            promise = {"noise": noise, "epsilon": 4.0, "noise_multiplier": None}
            adapters = {"lora_rank": 2, "trainable": "all"}
            other = small_config(speeches, privacy=promise, model=adapters)  # of a built-in model
            (folder / noise / "other.toml").write_text(other.to_toml(), encoding="utf-8")
            everything = (
                ("run", folder / noise / "my.toml", "--out", run),
                ("attack", run, "--samples", "1"),
                ("evaluate", run),
                ACCOUNT,
                ("compare", folder / noise / "other.toml", run, "--out", folder / noise / "both"),
                ("plan", folder / noise / "other.toml"),
                (
                    *("tune", folder / noise / "other.toml", "--trials", "1.5"),
                    *("--vary", "server.learning_rate=0.1,1", "--out", folder / noise / "search"),
                ),
            )
            for arguments in everything if noise == "secure" else everything[:1]:
                done = command(*arguments)
                assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in speeches.read_text(encoding="utf-8").splitlines()]
        with_given(other, data=rows)
    return folder


def files(place: Path) -> list[str]:
    """All files that were written, by their paths below a run, a comparison or the cache."""
    found = []
    for path in sorted(place.rglob("*")):
        if not path.is_file() or path.name in ("my.toml", "other.toml"):
            continue
        parts = path.relative_to(place).parts
        if parts[0] == "cache":
            found.append("$FEDSIM_CACHE/" + "/".join(parts[1:]))
        else:
            inside = 2 + (parts[1:3] in (("both", "other"), ("search", "winner")))
            found.append("/".join(parts[inside:]) if len(parts) > 2 else parts[1])
    return found


def test_the_table_has_a_row_for_every_file_and_no_other(place: Path) -> None:
    found, patterns = files(place), table()
    unnamed = [name for name in found if not any(fnmatch(name, pattern) for pattern in patterns)]
    assert not unnamed
    unused = [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in found)]
    assert not unused


@pytest.mark.parametrize("noise", ["secure"])
def test_no_file_gives_the_noise_away(
    place: Path, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the seed that noise is drawn from, nor the secret that texts were split by."""
    monkeypatch.setenv("FEDSIM_CACHE", str(place / "cache"))
    folder = RunFolder(place / noise / "run")
    config = folder.read_config()
    data_seed = folder.data_seed(config)
    materials = load_materials(config.seed, config.data, config.model, "cpu", data_seed)
    plan = build_plan(config, materials)
    for seed in {plan.seed, data_seed} if noise == "secure" else {plan.seed}:
        assert seed > 2**64
        holders = holding(place / noise, seed)
        assert not [name for name in holders if not name.startswith("model")], holders
    # What the review did: every number of the ledger as a seed, against the change of the model.
    start, end = (
        load_checkpoint(folder.checkpoints / f"round-{number:06}.safetensors").parameters
        for number in (2, 4)
    )
    moved = {name: value.double() - end[name].double() for name, value in start.items()}
    ledger = (place / noise / LEDGER).read_text(encoding="utf-8")
    words = {word for word in re.findall(r"[0-9a-f]+", ledger) if len(word) > 5}
    for seed in {int(word, 16) for word in words} | {int(w) for w in words if w.isdigit()}:
        assert l2_norm(_without(moved, seed, plan.noise_stddev)) > l2_norm(moved)
    if noise == "seeded":  # so that the search can find
        assert l2_norm(_without(moved, plan.seed, plan.noise_stddev)) < 0.5 * l2_norm(moved)


def _without(moved: Tensors, seed: int, stddev: float) -> Tensors:
    """What two rounds of SGD moved, less the noise that this seed would have drawn."""
    left = dict(moved)
    for round in (2, 3):
        zero = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in left.items()}
        drawn, _ = release_(zero, 1.0, stddev, noise_key(seed, "noise", round))
        left = {name: value - drawn[name] for name, value in left.items()}
    return left


def test_whoever_has_a_secure_runs_folder_cannot_try_texts(place: Path) -> None:
    """Its checksums have the secret in front; those of a seeded run have a seed that is there."""
    tried = {}
    for noise in ("seeded", "secure"):
        run = place / noise / "run"
        config = load_config(run / "config.toml")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FEDSIM_CACHE", str(place / "cache"))
            guess = load_materials(config.seed, config.data, config.model, "cpu")
        told = json.loads((run / "run.json").read_text(encoding="utf-8"))["sources"]
        tried[noise] = told == guess.sources
    assert tried == {"seeded": True, "secure": False}
