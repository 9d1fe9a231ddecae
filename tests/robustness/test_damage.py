"""Damaged files: one clear error, or the run goes on from the files that are whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import fedsim
from fedsim.config import load_config
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from fedsim.runner.checkpoint import checkpoints_in
from fedsim.runner.folder import RunFolder
from fedsim.utils.files import cache_dir
from tests.conftest import write_speeches
from tests.helpers.commands import fedsim as command
from tests.robustness.scene import Scene, check_same, contents

TRIALS = 30


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A whole run, and `cut`, a copy that lacks its end."""
    folder = tmp_path_factory.mktemp("damage")
    scene = Scene.make(folder / "one", write_speeches(folder / "text.jsonl", 0))
    fedsim.run(load_config(scene.config), scene.run)
    cut = RunFolder(Path(shutil.copytree(scene.run, folder / "cut")))
    shutil.rmtree(cut.model)
    for path in (*cut.path.glob("report.*"), checkpoints_in(cut.checkpoints)[-1]):
        path.unlink()
    return scene


@pytest.fixture
def cut(finished: Scene, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(finished.folder.parent / "cut", tmp_path / "run")))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "damage", "word"),
    [
        ("checkpoints/round-000010.safetensors", half, "round-000010.safetensors"),
        ("ledger.json", half, "ledger.json"),
        ("config.toml", half, "config.toml"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(
    cut: RunFolder, finished: Scene, name: str, damage: Callable[[Path], None], word: str
) -> None:
    (checkpoint,) = checkpoints_in(cut.checkpoints)
    assert checkpoint.name == "round-000010.safetensors"
    damage(cut.path / name)
    before = contents(cut.path)
    done = command("run", finished.config, "--out", cut.path, "--resume")
    assert word in done.complaint
    assert contents(cut.path) == before


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    cut: RunFolder, finished: Scene
) -> None:
    newest = cut.checkpoints / "round-000012.safetensors"
    shutil.copy(finished.run / "checkpoints" / newest.name, newest)
    half(newest)
    done = command("run", finished.config, "--out", cut.path, "--resume")
    assert done.returncode == 0 and str(newest) in done.stderr
    check_same(finished.run, cut.path)


def changed(rng: np.random.Generator, content: bytes) -> bytes:
    """Return bytes with up to three bits flipped, pieces cut, doubled or replaced."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        start = int(rng.integers(len(data) + 1)) % (128 if rng.random() < 0.5 else len(data) + 1)
        stop = start + int(2 ** rng.uniform(0, 8))
        piece = bytes(data[start:stop])
        odd = (b"", 2 * piece, b"\x00", b"\xff\xfe", b"[" * 300, rng.bytes(len(piece)))
        data[start:stop] = odd[int(rng.integers(len(odd)))]
    return bytes(data)


def read_config(path: Path) -> None:
    config = load_config(path)
    path.write_text(config.to_toml(), encoding="utf-8")
    assert load_config(path) == config


def read_store(path: Path) -> None:
    TokenStore.open(path.parent).verify()
    raise AssertionError("a damaged store was opened")


@pytest.mark.parametrize("reader", [read_config, read_store])
def test_random_damage_is_refused_or_harmless(
    reader: Callable[[Path], None], finished: Scene, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    store = next((cache_dir() / "stores").glob("[!.]*"))
    shutil.copytree(store, tmp_path / "store")
    config = tmp_path / "c.toml"
    config.write_text(load_config(finished.config).to_toml(), encoding="utf-8")
    kinds: dict[Callable[[Path], None], list[Path]] = {
        read_config: [config],
        read_store: sorted((tmp_path / "store").iterdir()),
    }
    files = kinds[reader]
    for _ in range(TRIALS):
        whole = files[int(rng.integers(len(files)))]
        content = whole.read_bytes()
        path = whole if reader is read_store else tmp_path / "changed.toml"
        damaged = changed(rng, content)
        path.write_bytes(damaged)
        if damaged != content:
            with suppress(ConfigError):
                reader(path)
        whole.write_bytes(content)


ODD = [True, -1, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "\0", "../x", [], {}]


@pytest.mark.parametrize("section", ["data", "model", "strategy", "privacy", "training"])
def test_odd_values_in_a_config_are_refused_or_written_and_read_alike(
    section: str, finished: Scene, tmp_path: Path
) -> None:
    raw = json.loads(load_config(finished.config).model_dump_json(exclude_none=True))
    for key in raw[section]:
        for odd in ODD:
            path = tmp_path / "odd.toml"
            values = {**raw, section: {**raw[section], key: odd}}
            path.write_text(tomli_w.dumps(values), encoding="utf-8")
            with suppress(ConfigError):
                read_config(path)
