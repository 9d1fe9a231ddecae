"""What a fuzzer found: files that made a reader fall over, or that it believed."""

from __future__ import annotations

import ast
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedsim
from fedsim.config import load_config, parse_config
from fedsim.errors import ConfigError
from fedsim.evaluation.score_cache import ScoreCache
from fedsim.materials import Materials
from fedsim.runner import checkpoint as sealing
from fedsim.runner.checkpoint import load_checkpoint, save_checkpoint
from fedsim.runner.folder import RunFolder
from fedsim.state import ServerState
from fedsim.sweep.cells import parse_variation
from fedsim.utils.cache import _SOURCES, remembered
from fedsim.utils.files import cache_dir
from fedsim.utils.json_text import parse_json

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text", [f"a = {DEEP}", f"seed = {'9' * 5000}", f"[{'a.' * 100_000}a]", "a = 1\n" * 20_000]
)
def test_a_config_that_no_parser_takes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.toml is (not TOML|nested too deeply|longer than)"):
        load_config(path)


def test_a_config_that_would_be_too_long_once_it_is_written_down() -> None:
    """A run folder has it a line an entry; it could not be taken up."""
    modules = [f"m{number}" for number in range(6500)]
    with pytest.raises(ConfigError, match=r"^config: \d+ bytes .* at most 65536 .* shorter lists$"):
        parse_config({"model": {"lora_rank": 2, "lora_target_modules": modules}})


@pytest.mark.parametrize("value", [DEEP, "9" * 5000, "x" * 100_000])
def test_an_override_that_no_parser_takes(tmp_path: Path, value: str) -> None:
    (tmp_path / "run.toml").touch()
    with pytest.raises(ConfigError, match=r"strategy\.rounds") as caught:
        load_config(tmp_path / "run.toml", [f"strategy.rounds={value}"])
    assert len(str(caught.value)) < 1000
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "run.toml", ["model.trainable=\udcff"])
    assert parse_variation(f"seed={'9' * 5000}").values


@pytest.mark.parametrize(
    "text", ["{", DEEP, "9" * 5000, b"\xff", "\ud800".encode("utf-8", "replace")]
)
def test_json_that_is_none_is_one_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        value = parse_json(text)
        raise ValueError(value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seed", f"0x{'f' * 5000}", "cannot be written"),
        ("strategy.rounds", f"0x{'f' * 5000}", "give at most 1e"),
        *(
            (key, "1000000000001", f"{key} = 1000000000001: give at most 1e")
            for key in ("strategy.group_size", "data.held_out_limit", "privacy.declared_num_users")
        ),
    ],
)
def test_a_number_beyond_all_arithmetic_is_refused(
    tmp_path: Path, key: str, value: str, said: str
) -> None:
    (tmp_path / "run.toml").touch()
    with pytest.raises(ConfigError, match=said):
        load_config(tmp_path / "run.toml", [f"{key}={value}"])


@pytest.mark.parametrize("content", [b"\xff", DEEP.encode(), b"9" * 5000, b"null"])
def test_a_ledger_and_seconds_that_are_none(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(tmp_path)
    folder.ledger.write_bytes(content)
    (tmp_path / "seconds.json").write_bytes(content)
    with pytest.raises(ConfigError, match="ledger"):
        folder.read_ledger()
    with pytest.raises(ConfigError, match=r"seconds\.json"):
        folder.read_seconds()


@pytest.mark.parametrize("seconds", ["-1", "NaN", "Infinity", "true", '"3"', "1e400"])
def test_seconds_that_no_clock_shows(tmp_path: Path, seconds: str) -> None:
    (tmp_path / "seconds.json").write_text(seconds, encoding="utf-8")
    with pytest.raises(ConfigError, match="delete it"):
        RunFolder(tmp_path).read_seconds()


@pytest.mark.parametrize("line", ["7", "[]", "{}", '{"round": "1"}', '{"round": -1}', "null"])
def test_a_line_of_metrics_that_says_nothing_of_a_round(tmp_path: Path, line: str) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(f'{{"round": 0}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2: expected an object with a round"):
        folder.read_metrics()


@pytest.mark.parametrize("round", [True, -1, 2.5, "3", float("inf"), float("nan"), 10**30])
def test_a_checkpoint_of_a_round_that_is_none(tmp_path: Path, round: Any) -> None:  # noqa: ANN401
    path = save_checkpoint(tmp_path, ServerState(3, {"a": torch.zeros(2)}), keep=1)
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + size])
    ours = json.loads(head["__metadata__"]["fedsim"])
    changed = {**ours, "round": round, "sha256": sealing.PLACEHOLDER}
    head["__metadata__"]["fedsim"] = json.dumps(changed)
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    sealing.seal(path)
    with pytest.raises(ConfigError, match="not a fedsim checkpoint"):
        load_checkpoint(path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, None])
def test_a_checkpoint_of_other_parameters(tmp_path: Path, dtype: torch.dtype | None) -> None:
    parameters = {} if dtype is None else {"a": torch.zeros(2, dtype=dtype)}
    with pytest.raises(ConfigError, match="parameters are missing, or not float32"):
        load_checkpoint(save_checkpoint(tmp_path, ServerState(3, parameters), keep=1))


@pytest.mark.parametrize(
    "content",
    [
        *(DEEP, "9" * 5000, "", "{", "[]", "null", "\x00\xff", "another digit"),
        *('{"value": 1}', '{"inputs": 1, "value": 2}', '{"value": 0.1, "inputs": {}}'),
    ],
)
def test_a_damaged_number_is_computed_again(content: str) -> None:
    key = {"case": content[:15]}
    remembered("hostile", key, lambda: 1.5, lambda value: True)
    for path in (cache_dir() / "hostile").iterdir():
        other = path.read_bytes().replace(b'"value": 1.5', b'"value": 1.4')
        path.write_bytes(other if content == "another digit" else content.encode("latin-1"))
    assert remembered("hostile", key, lambda: 2.5, lambda value: True) == 2.5
    assert remembered("hostile", key, lambda: 3.5, lambda value: True) == 2.5


def test_a_number_of_other_sources_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier fedsim may have got it wrong: its truncated sampling was once priced too low."""
    key = {"case": "other sources"}
    assert remembered("hostile", key, lambda: 1.5, lambda value: True) == 1.5
    monkeypatch.setattr("fedsim.utils.cache._sources", lambda: "another digest")
    assert remembered("hostile", key, lambda: 2.5, lambda value: True) == 2.5


def test_all_that_a_price_is_computed_by_is_among_the_sources() -> None:
    """Whatever the accountants import of fedsim, constants and formats aside, is in the digest."""
    package = Path(fedsim.__file__).parent
    held = {path for pattern in _SOURCES for path in package.glob(pattern)}
    reached, waiting = set(), {package / "accounting" / "accountants.py"}
    while waiting:
        path = waiting.pop()
        reached.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsim."):
                base = package.joinpath(*str(node.module).split(".")[1:])
                found = [base.with_suffix(".py"), base / "__init__.py"]
                waiting |= {file for file in found if file.exists()} - reached
    others = {path.relative_to(package).as_posix() for path in reached - held}
    assert others <= {
        "clipping.py",
        "errors.py",
        "estimators.py",
        "execution.py",
        "seeding.py",
        "tensors.py",
        "utils/__init__.py",
        "utils/cache.py",
        "utils/files.py",
        "utils/json_text.py",
        "utils/section.py",
    }


@pytest.mark.parametrize(
    "kind",
    ["float32", "bfloat16", "square", "scalar", "negative", "more", "cut", "far", "some", "NaN"],
)
def test_damaged_scores_are_computed_again(materials: Materials, tmp_path: Path, kind: str) -> None:
    cache, examples = ScoreCache(materials.store, tmp_path), np.arange(5)
    start = materials.model.initial_parameters()
    true = cache.scores(materials.model, start, examples)
    (path,) = tmp_path.iterdir()
    kept = load_file(path)
    passes = {"far": torch.tensor(99), "some": torch.tensor([1, 1]), "NaN": torch.tensor(math.nan)}
    odd = {
        "square": kept["nats"][:, None].clone(),
        "scalar": torch.tensor(1.0),
        "negative": -1.0 - kept["nats"],
        "cut": kept["nats"],
    }
    if kind in passes:
        kept |= {"passes": passes[kind], "nats": kept["nats"] + 1.0}
    elif kind == "more":
        kept["correct"] = kept["tokens"] + 1
    else:
        kept["nats"] = odd[kind] if kind in odd else kept["nats"].to(getattr(torch, kind))
    save_file(kept, path)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    again = cache.scores(materials.model, start, examples)
    assert np.array_equal(again.nats, true.nats)
    assert np.array_equal(again.correct, true.correct)
