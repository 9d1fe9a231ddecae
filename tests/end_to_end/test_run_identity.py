"""A run goes on from what it began with; a secure run's seed is not next to its model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.config import load_config
from fedsim.materials import load_materials
from fedsim.report.schema import load_metrics, load_report
from fedsim.runner.folder import RunFolder
from fedsim.sampling import PoissonSampling
from fedsim.utils import files as paths
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.light import light_config, write_config

SEED = 918_273_645


def write(
    path: Path,
    source: Path,
    noise: str,
    data: Mapping[str, object] | None = None,
    **strategy: object,
) -> Path:
    config = light_config(
        source,
        privacy={"noise": noise},
        data={"held_out_users": 0.4, **(data or {})},
        strategy=strategy,
        training={"keep_checkpoints": 4},
    )
    path.write_text(config.model_copy(update={"seed": SEED}).to_toml(), encoding="utf-8")
    return path


def holding(folder: Path, seed: int) -> list[str]:
    """Files in which a seed stands, as digits of JSON, TOML or HTML, in hexadecimal or as bytes."""
    size = max(8, (seed.bit_length() + 7) // 8)
    spelt = [str(seed), f"{seed:x}", f"{seed:X}"]
    forms = [
        *(text.encode() for text in spelt),
        *(seed.to_bytes(size, o) for o in ("big", "little")),
    ]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if any(form in path.read_bytes() for form in forms)]


def kept(folder: Path) -> Path:
    """Where the secret of a secure run is kept."""
    run_id = json.loads((folder / "run.json").read_text())["id"]
    return paths.cache_dir() / "seeds" / f"{run_id}.json"


def cut_off(folder: RunFolder) -> None:
    """Leave a run as a kill after its first checkpoint would."""
    folder.report.unlink()
    for path in sorted(folder.checkpoints.iterdir())[1:]:
        path.unlink()


def test_the_data_seed_of_a_secure_run_is_nowhere_in_its_folder(
    speeches: Path, tmp_path: Path
) -> None:
    config = write(tmp_path / "mine.toml", speeches, "secure")
    out = tmp_path / "out"
    fedsim_ok("run", config, "--out", out)
    place = kept(out)
    seed = json.loads(place.read_text())["seed"]
    assert seed > 2**64
    assert holding(out, seed) == []
    assert place.stat().st_mode & 0o077 == 0
    assert RunFolder(out).read_config() == load_config(config)
    assert fedsim("evaluate", out, "--json").returncode == 0  # it finds the split again
    cut_off(RunFolder(out))
    fedsim_ok("run", out / "config.toml", "--out", out, "--resume")
    assert json.loads(place.read_text())["seed"] == seed
    assert holding(out, seed) == []
    place.unlink()
    for lost in (fedsim("evaluate", out), fedsim("run", config, "--out", out, "--resume")):
        assert lost.returncode == 2
        assert str(place) in lost.stderr
    (out / "planted.json").write_text(f"{seed:x}")
    assert holding(out, seed) == ["planted.json"]  # so that the search can find


def test_no_seed_of_the_config_decides_what_a_secure_run_trains_on(
    speeches: Path, tmp_path: Path
) -> None:
    """Two runs of one config hold out other users and examples, and so do its planner and audit."""
    secure = load_config(write(tmp_path / "mine.toml", speeches, "secure", rounds=1))
    seeded = load_config(write(tmp_path / "seeded.toml", speeches, "seeded", rounds=1))
    splits: dict[str, set[bytes]] = {"secure": set(), "seeded": set()}
    for config in (secure, secure, secure, seeded, seeded):
        seed = RunFolder(tmp_path / "not begun").data_seed(config)
        loaded = load_materials(config.seed, config.data, config.model, "cpu", seed)
        assert loaded.seed == seed
        splits[config.privacy.noise].add(loaded.split.train_examples.tobytes())
    assert (len(splits["secure"]), len(splits["seeded"])) == (3, 1)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_run_does_not_go_on_with_other_texts(speeches: Path, tmp_path: Path, noise: str) -> None:
    """The rounds before and after would be of two data sets, and a repeated one of both."""
    texts = tmp_path / "texts.jsonl"
    whole = speeches.read_text(encoding="utf-8")
    texts.write_text(whole, encoding="utf-8")
    config = write(tmp_path / "mine.toml", texts, noise)
    folder = RunFolder(tmp_path / "out")
    fedsim_ok("run", config, "--out", folder.path)
    cut_off(folder)
    files = [path for path in folder.path.rglob("*") if path.is_file() and path.name != "run.log"]
    before = {path: path.read_bytes() for path in files}
    for text, status in ((whole.replace("king", "lord", 1), 2), (whole, 0)):
        texts.write_text(text, encoding="utf-8")
        done = fedsim("run", config, "--out", folder.path, "--resume")
        assert done.returncode == status
        if status:
            assert "--resume: data.source changed since the run" in done.stderr
            assert {path: path.read_bytes() for path in before} == before
    assert folder.report.exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_run_goes_on_with_its_texts_at_another_place(
    speeches: Path, tmp_path: Path, kind: str
) -> None:
    """Their digest decides, not the path."""
    texts = tmp_path / "texts" / "texts.jsonl"
    texts.parent.mkdir()
    texts.write_bytes(speeches.read_bytes())
    place = texts if kind == "file" else texts.parent
    config = write(tmp_path / "mine.toml", speeches, "seeded", {"source": str(place)})
    folder = RunFolder(tmp_path / "out")
    fedsim_ok("run", config, "--out", folder.path)
    cut_off(folder)
    moved = texts.parent.rename(tmp_path / "moved")
    place = moved / texts.name if kind == "file" else moved
    resume = ("run", config, "--out", folder.path, "--resume", "--set", f"data.source={place}")
    (moved / texts.name).write_bytes(speeches.read_bytes().replace(b"king", b"lord", 1))
    assert "--resume: data.source changed since" in fedsim(*resume).complaint
    (moved / texts.name).write_bytes(speeches.read_bytes())
    fedsim_ok(*resume)
    assert folder.report.exists()
    assert folder.read_config().data.source == str(place)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_a_resume_after_a_user_was_added_names_the_texts(
    speeches: Path, tmp_path: Path, noise: str
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_bytes(speeches.read_bytes())
    config = write(tmp_path / "mine.toml", texts, noise)
    folder = RunFolder(tmp_path / "out")
    fedsim_ok("run", config, "--out", folder.path)
    cut_off(folder)
    with texts.open("a", encoding="utf-8") as file:
        file.write('{"author": "somebody new", "body": "the king shall ride"}\n')
    complaint = fedsim("run", config, "--out", folder.path, "--resume").complaint
    assert "--resume: data.source changed since the run" in complaint


def test_a_finished_run_goes_on_to_more_rounds(speeches: Path, tmp_path: Path) -> None:
    """Where each round has a price of its own, at the noise of the rounds before."""
    config, out = tmp_path / "mine.toml", tmp_path / "out"
    light = light_config(
        speeches,
        privacy={"noise": "secure", "epsilon": 4.0, "noise_multiplier": None, "delta": 1e-3},
    )
    config.write_text(light.to_toml(), encoding="utf-8")
    fedsim_ok("run", config, "--out", out)
    four = load_report(out).privacy
    more = ("run", config, "--out", out, "--resume", "--set", "strategy.rounds=6")
    files = [path for path in out.rglob("*") if path.is_file() and path.name != "run.log"]
    before = {path: path.read_bytes() for path in files}
    complaint = fedsim(*more).complaint
    assert {path: path.read_bytes() for path in before} == before
    assert (
        "strategy.rounds = 6 and not 4: with 6 rounds this guarantee needs another noise"
        in complaint
    )
    noise = re.search(r"run's privacy\.noise_multiplier = (\S+): then", complaint)
    assert noise is not None
    same = light.privacy.model_copy(update={"epsilon": None, "noise_multiplier": float(noise[1])})
    text = light.model_copy(update={"privacy": same}).to_toml()
    config.write_text(text, encoding="utf-8")
    fedsim_ok(*more)
    six = load_report(out).privacy
    assert (four.rounds, six.rounds) == (4, 6)
    assert [line.round for line in load_metrics(out)] == [0, 1, 2, 3, 4, 5, 6]
    assert six.epsilon is not None and six.noise_multiplier == four.noise_multiplier
    cost = RoundCost(PoissonSampling(six.sampling_probability or 0.0), six.noise_multiplier or 0.0)
    assert six.epsilon == pytest.approx(epsilon(cost, 6, 1e-3), rel=1e-9)
    fedsim_ok("account", "verify", out / "model")
    fewer = fedsim("run", config, "--out", out, "--resume").complaint
    assert "strategy.rounds = 4 and not 6: differs from the run's" in fewer


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"strategy": {"sampling": {"kind": "cyclic", "groups": 2}}},
            "one cost covers exactly the planned rounds of the run",
        ),
        ({"server": {"schedule": {"kind": "linear"}}}, "has a schedule or an average over all"),
        ({"server": {"average": {"kind": "tail"}}}, "has a schedule or an average over all"),
        (
            {
                "strategy": {
                    "clip": {
                        "l2_clip_norm": 1.0,
                        "schedule": {"kind": "linear", "final_l2_clip_norm": 0.5},
                    }
                }
            },
            "has a schedule or an average over all",
        ),
    ],
    ids=["price", "rate", "average", "clip"],
)
def test_a_run_whose_rounds_are_one_whole_does_not_go_on_to_more(
    sections: dict[str, Any], words: str, speeches: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "mine.toml", speeches, **sections)
    fedsim_ok("run", config, "--out", tmp_path / "out")
    more = ("--resume", "--set", "strategy.rounds=6")
    complaint = fedsim("run", config, "--out", tmp_path / "out", *more).complaint
    assert "strategy.rounds = 6 and not 4: " in complaint
    assert words in complaint


def test_another_version_is_noted_and_0_2_does_not_go_on(speeches: Path, tmp_path: Path) -> None:
    config = write(tmp_path / "mine.toml", speeches, "seeded")
    folder = RunFolder(tmp_path / "out")
    fedsim_ok("run", config, "--out", folder.path)
    begun = json.loads(folder.identity.read_text())
    cut_off(folder)
    folder.identity.write_text(json.dumps({**begun, "torch": "1.0"}), encoding="utf-8")
    done = fedsim_ok("run", config, "--out", folder.path, "--resume")
    assert "continues with other versions than it began with: torch 1.0 -> " in done.stderr
    old = {**begun, "version": 2, "fedsim": "0.2.0"}
    folder.identity.write_text(json.dumps(old), encoding="utf-8")
    for command in (("evaluate",), ("run", config, "--resume", "--out")):
        assert "this fedsim reads 3; train again" in fedsim(*command, folder.path).complaint


IDENTITIES = [
    ('{"version": 4, "fedsim": "9.1", "sources": {}}', "has format 4, this fedsim reads 3"),
    ('{"version": 3}', "cannot be read"),
    ("", "cannot be read"),
    ('{"version": 3, "fedsim": "0", "sources": {}, "id": "../../x"}', "does not hold it"),
]


def test_an_identity_that_cannot_be_read_is_refused(speeches: Path, tmp_path: Path) -> None:
    config = write(tmp_path / "mine.toml", speeches, "secure", rounds=1)
    folder = RunFolder(tmp_path / "out")
    fedsim_ok("run", config, "--out", folder.path)
    finished = tmp_path / "finished"
    shutil.copytree(folder.path, finished)
    cut_off(folder)
    for content, message in IDENTITIES:
        for path, command in (
            (folder.path, ("run", config, "--resume", "--out")),
            (finished, ("evaluate",)),
        ):
            RunFolder(path).identity.write_text(content, encoding="utf-8")
            assert message in fedsim(*command, path).complaint
