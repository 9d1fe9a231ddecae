"""Hostile configs: TOML files, `--set` overrides, what `--vary` makes names of, plug-in names."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from fedsim.config import Config, load_config, parse_config
from fedsim.registry import resolve
from fedsim.seeding import stream
from fedsim.sweep.cells import expand, parse_variation
from tests.robustness.fuzzing.mutations import Dice, changed_bytes, changed_tree, odd_value, pick
from tests.robustness.fuzzing.samples import run_config
from tests.robustness.fuzzing.target import Target, believe

_FILE, _OVERRIDES = "config.toml", "overrides.json"
_KEYS = (
    "seed",
    "data.source",
    "data.preparation",
    "data.canaries",
    "strategy.rounds",
    "strategy.local",
    "strategy.clip",
    "strategy.sampling.kind",
    "privacy.epsilon",
    "privacy.noise_multiplier",
    "model.lora_target_modules",
    "training.trackers",
    "a.b.c.d",
    "data",
    " ",
    "strategy..rounds",
)
_SECTIONS: dict[str, Any] = {
    "data": {
        "preparation": [{"step": "min-examples", "count": 2}, {"step": "exact-duplicates"}],
        "canaries": {"num_users": 2, "num_examples": 2, "shared_tokens": 3},
        "recipe": "enron",
    },
    "strategy": {
        "local": {"task": "fedavg", "epochs": 2},
        "clip": {"kind": "adaptive", "l2_clip_norm": 1.0},
        "sampling": {"kind": "truncated-poisson", "max_cohort_size": 9},
        "estimator": {"kind": "clipped", "min_weight": 0.5},
    },
    "training": {"trackers": ["tensorboard"]},
}


def _write(valid: Path, place: Path, dice: Dice) -> None:
    raw: dict[str, Any] = run_config(valid).model_dump(exclude_none=True)
    for name, section in _SECTIONS.items():
        raw[name] |= {key: value for key, value in section.items() if dice.random() < 0.3}
    how = dice.random()
    if how < 0.6:
        changed = changed_tree(dice, raw)
        text = _toml(changed if isinstance(changed, dict) else {"data": changed})
    elif how < 0.9:
        text = changed_bytes(dice, tomli_w.dumps(raw).encode())
    else:
        deep = int(pick(dice, [10, 1000, 100_000]))
        nested = pick(dice, [f"a = {'[' * deep}", f"[{'a.' * deep}a]", f"{'a.' * deep}a = 1"])
        number = pick(dice, ["9" * 5000, "1e400", "0x" + "f" * 5000, "-0", "1979-05-27T07:32:00Z"])
        text = pick(dice, [nested, f"seed = {number}", f"[strategy]\nrounds = {number}"]).encode()
    (place / _FILE).write_bytes(text)
    overrides = [_override(dice) for _ in range(int(dice.integers(3)))]
    (place / _OVERRIDES).write_text(json.dumps(overrides), encoding="utf-8")


def _override(dice: Dice) -> str:
    value = odd_value(dice)
    said = pick(dice, [f"{value}", json.dumps(value), f'"{value}"'])
    said = said if dice.random() < 0.9 else said + "\udcff"  # as argv has bytes that are no UTF-8
    return pick(dice, [f"{pick(dice, _KEYS)}={said}", f"{said}={said}", said])


def _toml(raw: dict[str, Any]) -> bytes:
    try:
        return tomli_w.dumps(_sayable(raw)).encode("utf-8", errors="surrogatepass")
    except (TypeError, ValueError, AttributeError, RecursionError):
        return repr(raw).encode("utf-8", errors="surrogatepass")


def _sayable(value: Any) -> Any:  # noqa: ANN401
    """Return the value without what TOML has no word for."""
    if isinstance(value, dict):
        return {str(k): _sayable(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_sayable(v) for v in value if v is not None]
    return value


def _read(place: Path) -> None:
    overrides = json.loads((place / _OVERRIDES).read_text(encoding="utf-8"))
    _check(load_config(place / _FILE, overrides))


def _check(config: Config) -> None:
    """A config that was taken is one that a run folder can hold and a run can draw with."""
    again = parse_config(tomllib.loads(config.to_toml().encode().decode()))
    believe(again == config, "a config is not what it is after it was written and read")
    stream(config.seed, "noise").random()


def _write_name(valid: Path, place: Path, dice: Dice) -> None:
    stem = str(odd_value(dice)).replace("/", "").replace("\0", "")[:100] or "x"
    file = place / f"{stem}.toml"
    file.write_text(run_config(valid).to_toml(), encoding="utf-8")
    values = ",".join(json.dumps(odd_value(dice)) for _ in range(int(dice.integers(1, 3))))
    key = pick(dice, ["model.trainable", "model.name_or_path", "data.source", "seed", *_KEYS])
    names = [str(odd_value(dice))[:1000], "../uls", "uls:build"]
    content = {"file": file.name, "vary": f"{key}={values}", "names": names}
    (place / "names.json").write_text(json.dumps(content), encoding="utf-8")


def _read_name(place: Path) -> None:
    content = json.loads((place / "names.json").read_text(encoding="utf-8"))
    for cell in expand(place / content["file"], [parse_variation(content["vary"])]):
        out = (place / cell.name).resolve()
        believe(out.parent == place.resolve(), f"a run is called {cell.name!r}")
        believe(len(os.fsencode(cell.name)) <= 200, "a name is too long for a file")
        _check(cell.config)
    for name in content["names"]:
        for group in ("strategies", "studies", "trackers", "models", "tasks", "benchmarks"):
            resolve(group, name, "a name")


TARGETS = (Target("config", _write, _read), Target("names", _write_name, _read_name))
