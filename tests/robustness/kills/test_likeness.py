"""The torture's own eyes: whatever is lost on disk, they must see it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import fedsim
from fedsim.accounting.ledger import Ledger
from fedsim.config import load_config
from fedsim.runner.checkpoint import checkpoints_in
from fedsim.runner.folder import RunFolder
from fedsim.utils.files import cache_dir
from tests.conftest import write_speeches
from tests.robustness.kills.child import Strike, begin, ended, kill_myself
from tests.robustness.kills.likeness import differences, model_differences
from tests.robustness.kills.scene import ROUNDS, Scene, scene_in, write_config
from tests.robustness.kills.sight import look
from tests.robustness.kills.stages import stage_of


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("torture")
    write_speeches(folder / "text.jsonl", 0)
    write_config(folder / "seeded.toml", folder / "text.jsonl", "seeded")
    scene = scene_in(folder / "one", folder / "seeded.toml")
    fedsim.run(load_config(scene.config), scene.run)
    return Scene(scene.config, scene.run, cache_dir())


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def a_round_less(path: Path) -> None:
    ledger = Ledger.from_json(json.loads(path.read_text(encoding="utf-8")))
    (item,) = ledger.items
    fewer = replace(item, num_rounds=item.num_rounds - 1)
    path.write_text(json.dumps(Ledger((fewer,)).to_json()), encoding="utf-8")


LOSSES: list[tuple[str, Callable[[Path], None], str]] = [
    ("metrics.jsonl", half, "differs"),
    ("checkpoints/round-000012.safetensors", one_bit, "checksum"),
    ("checkpoints/round-000010.safetensors", Path.unlink, "missing"),
    ("model/model.safetensors", half, "half"),
    ("model/config.json", Path.unlink, "holds"),
    ("ledger.json", a_round_less, "11 are charged"),
    ("ledger.json", half, "not JSON"),
    ("report.json", half, "report"),
    ("report.html", one_bit, "not the page"),
    (".model.7.tmp", Path.touch, "left behind"),
]


@pytest.mark.parametrize(("name", "lose", "line"), LOSSES)
def test_every_loss_is_seen(
    name: str, lose: Callable[[Path], None], line: str, scene: Scene, tmp_path: Path
) -> None:
    twin = Scene(scene.config, tmp_path / "run", scene.cache)
    shutil.copytree(scene.run, twin.run)
    lose(twin.run / name)
    assert line in "\n".join(seen(scene, twin))


def seen(scene: Scene, twin: Scene) -> list[str]:
    return [
        *look(twin).problems,
        *model_differences(scene.run, twin.run, seeded=True),
        *differences(scene.run, twin.run),
    ]


def test_a_run_that_lost_rounds_of_fresh_noise_is_whole(scene: Scene, tmp_path: Path) -> None:
    """Killed after it charged rounds and before their checkpoint, it is charged for them twice."""
    write_config(tmp_path / "secure.toml", scene.config.parent / "text.jsonl", "secure")
    killed = Scene(tmp_path / "secure.toml", tmp_path / "run", scene.cache)
    assert ended(begin(killed, tmp_path / "log", Strike("checkpoint", 10, kill_myself))) == -9
    assert ended(begin(killed, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    assert look(killed).releases > ROUNDS
    assert model_differences(scene.run, killed.run, seeded=False) == []
    promised = killed.run / "model" / "privacy.json"
    content = json.loads(promised.read_text(encoding="utf-8"))
    promised.write_text(json.dumps({**content, "trade_off": None}), encoding="utf-8")
    assert "model/privacy.json: half, or" in model_differences(scene.run, killed.run, False)[0]


def test_a_whole_run_is_read_as_one(scene: Scene, tmp_path: Path) -> None:
    twin = Scene(scene.config, tmp_path / "run", scene.cache)
    shutil.copytree(scene.run, twin.run)
    assert seen(scene, twin) == []
    sight = look(scene)
    assert (sight.checkpoint, sight.last_line, sight.releases) == (ROUNDS, ROUNDS, ROUNDS)
    assert len(checkpoints_in(RunFolder(scene.run).checkpoints)) == 2


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        ("/c/models/.tiny.7.tmp/config.json", "base model"),
        ("/c/stores/.key.build/parts/0000.json", "store"),
        ("/r", None),
        ("/run2/ledger.json", None),
        ("/r/.fedsim.lock", "begin"),
        ("/r/.ledger.json.7.tmp", "charge"),
        ("/r/metrics.jsonl", "evaluate"),
        ("/r/checkpoints/.round-000002.safetensors.7.tmp", "checkpoint"),
        ("/r/.model.7.tmp/config.json", "model"),
        ("/r/report.html", "report"),
    ],
)
def test_a_change_of_the_disk_belongs_to_a_stage(path: str, stage: str | None) -> None:
    assert stage_of(path, Path("/r"), Path("/c")) == stage
