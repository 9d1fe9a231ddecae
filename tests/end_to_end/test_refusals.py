"""Every refused config of `refusals.txt`: exit status 2, one message with these words, no files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.config import load_config
from fedsim.errors import ConfigError
from tests.helpers.commands import fedsim
from tests.helpers.light import light_config

LINES = Path(__file__).with_name("refusals.txt").read_text(encoding="utf-8").splitlines()
ROWS = [line.split(" | ") for line in LINES if not line.startswith("#")]

Sections = dict[str, dict[str, Any]]
NO_SIZE: dict[str, Any] = {"rounds": 8, "cohort_size": None}
BASES: dict[str, Sections] = {
    "uls": {},
    "els": {"strategy": {**NO_SIZE, "name": "els", "batch_size": 9.0}},
    "bare": {"strategy": NO_SIZE},
    "balanced": {
        "strategy": {**NO_SIZE, "sampling": {"kind": "balanced", "participations": 2}},
        "privacy": {"declared_num_users": 24},
    },
    "cyclic": {
        "strategy": {**NO_SIZE, "sampling": {"kind": "cyclic", "groups": 3}},
        "privacy": {"declared_num_users": 24, "mechanism": "banded"},
    },
}


@pytest.fixture(scope="module")
def configs(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config of each base."""
    folder = tmp_path_factory.mktemp("configs")
    for name, sections in BASES.items():
        config = light_config(speeches, **{key: dict(value) for key, value in sections.items()})
        (folder / f"{name}.toml").write_text(config.to_toml(), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("base", "overrides", "words"), ROWS, ids=lambda cell: cell[:60])
def test_a_config_is_refused_in_one_message(
    base: str,
    overrides: str,
    words: str,
    configs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config, changes = configs / f"{base}.toml", overrides.split("; ")
    try:
        load_config(config, changes)
    except ConfigError as error:  # the command prints it; see test_wrong_input.py
        assert words in str(error)
        return
    options = [word for change in changes for word in ("--set", change)]
    assert words in fedsim("run", config, "--out", tmp_path / "run", *options).complaint
    assert not (tmp_path / "run").exists()
