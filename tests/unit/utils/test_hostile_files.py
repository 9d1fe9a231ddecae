"""What a fuzzer found: files that made a reader fall over, or that it believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.config import load_config
from fedsim.errors import ConfigError
from fedsim.sweep.cells import parse_variation
from fedsim.utils.cache import remembered
from fedsim.utils.json_text import parse_json

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [f"a = {DEEP}", f"seed = {'9' * 5000}", "a = 1\n" * 20_000])
def test_a_config_that_no_parser_takes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.toml is not TOML"):
        load_config(path)


@pytest.mark.parametrize("value", [DEEP, "9" * 5000, "x" * 100_000])
def test_an_override_that_no_parser_takes(tmp_path: Path, value: str) -> None:
    (tmp_path / "run.toml").touch()
    with pytest.raises(ConfigError, match=r"strategy\.rounds") as caught:
        load_config(tmp_path / "run.toml", [f"strategy.rounds={value}"])
    assert len(str(caught.value)) < 1000
    assert parse_variation(f"seed={'9' * 5000}").values


@pytest.mark.parametrize(
    "text", ["{", DEEP, "9" * 5000, b"\xff", "\ud800".encode("utf-8", "replace")]
)
def test_json_that_is_none_is_one_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        value = parse_json(text)
        raise ValueError(value)


def test_a_number_of_an_earlier_format_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier fedsim may have got it wrong: its truncated sampling was once priced too low."""
    key = {"case": "other format"}
    assert remembered("hostile", key, lambda: 1.5) == 1.5
    monkeypatch.setattr("fedsim.utils.cache._VERSION", -1)
    assert remembered("hostile", key, lambda: 2.5) == 2.5
