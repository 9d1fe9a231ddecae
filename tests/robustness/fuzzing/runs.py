"""Hostile run folders: checkpoint, ledger, metrics, report, and a whole one to each command."""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from fedsim.attacks.user_inference import attack_run
from fedsim.report.schema import load_metrics, load_report
from fedsim.runner.checkpoint import PLACEHOLDER, checkpoints_in, load_checkpoint, seal
from fedsim.runner.detailed_evaluation import evaluate_run
from fedsim.runner.folder import RunFolder
from fedsim.runner.identity import FORMAT, check_sources
from fedsim.runner.shared_ledger import read_shared
from fedsim.sweep.compare import compare
from tests.robustness.fuzzing.mutations import Dice, changed_bytes, changed_tree, odd_value, pick
from tests.robustness.fuzzing.samples import RUN, finished_run, read_json, write_json
from tests.robustness.fuzzing.target import Target, believe

_CHECKPOINT = "round-000002.safetensors"
_SHARED = "shared.json"
_DTYPES = ("F64", "F16", "BF16", "I64", "U8", "BOOL", "F32", "F8_E4M3", "X9")


def _write_checkpoint(valid: Path, place: Path, dice: Dice) -> None:
    content = (valid / RUN / "checkpoints" / _CHECKPOINT).read_bytes()
    path = place / _CHECKPOINT
    how = dice.random()
    if how < 0.25:
        path.write_bytes(changed_bytes(dice, content))
    elif how < 0.65:
        _write_with_head(dice, content, path)
    elif how < 0.75:
        size = pick(dice, [0, 1, 2**31, 2**63 - 1, 2**64 - 1, len(content)])
        path.write_bytes(struct.pack("<Q", size) + content[8:])
    else:
        _write_tensors(dice, content, path)


def _write_with_head(dice: Dice, content: bytes, path: Path) -> None:
    """Change the JSON in front: declared sizes and types, or what fedsim says of the state."""
    (size,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + size])
    if dice.random() < 0.7:
        ours = changed_tree(dice, json.loads(head["__metadata__"]["fedsim"]))
        if isinstance(ours, dict) and "sha256" in ours and dice.random() < 0.8:  # past the checksum
            ours["sha256"] = PLACEHOLDER
        head["__metadata__"]["fedsim"] = json.dumps(ours)
    elif dice.random() < 0.3:
        tensor = head[pick(dice, [name for name in head if name != "__metadata__"])]
        tensor["dtype"] = pick(dice, _DTYPES)
    else:
        head = changed_tree(dice, head)
    text = json.dumps(head).encode("utf-8", errors="surrogatepass")
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    if text.count(PLACEHOLDER.encode()) == 1:
        seal(path)


def _write_tensors(dice: Dice, content: bytes, path: Path) -> None:
    """A file that is well made, of tensors that are not those of the run."""
    (size,) = struct.unpack("<Q", content[:8])
    ours = json.loads(content[8 : 8 + size])["__metadata__"]
    names = ["parameters/a", "parameters/b", "optimizer/a/step", "../../outside/x", "parameters/"]
    kinds = [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]
    tensors = {
        name: torch.full((2, 3), float(pick(dice, [0.0, math.nan, math.inf]))).to(pick(dice, kinds))
        for name in names
        if dice.random() < 0.5
    }
    save_file(tensors, path, ours if dice.random() < 0.8 else None)


def _read_checkpoint(place: Path) -> None:
    state = load_checkpoint(place / _CHECKPOINT)
    believe(type(state.round) is int and 0 <= state.round < 2**63, f"round {state.round!r}")
    believe(bool(state.parameters), "a state without parameters")
    kinds = {value.dtype for value in state.parameters.values()}
    believe(kinds == {torch.float32}, f"parameters of {kinds}")
    believe(0.0 < state.clip_scale < math.inf, "a clip of no size")
    _check_ledger(state.ledger.to_json())


def _check_ledger(data: dict[str, Any]) -> None:
    for run in data["releases"]:
        believe(run["first_round"] >= 0 and run["num_rounds"] >= 1, "rounds that are none")
        believe(0.0 <= run["cost"]["noise_multiplier"] < math.inf, "a noise that is none")
        believe(run["cost"]["units_per_user"] >= 1, "nobody's units")


def _write_file(name: str) -> Any:  # noqa: ANN401  (a function of a target)
    """Return a `write` that changes one JSON (lines) file of the run."""

    def write(valid: Path, place: Path, dice: Dice) -> None:
        content = (valid / RUN / name).read_bytes()
        how = dice.random()
        if how < 0.3:
            changed = changed_bytes(dice, content)
        elif how < 0.9:
            trees = [json.loads(line) for line in _documents(name, content)]
            number = int(dice.integers(len(trees)))
            trees[number] = changed_tree(dice, trees[number])
            if dice.random() < 0.1:
                trees[number] = odd_value(dice)
            text = "\n".join(json.dumps(tree) for tree in trees)
            changed = text.encode("utf-8", errors="surrogatepass")
        else:
            changed = pick(dice, [b"", b"null", b"[]", b"1e999", b"9" * 5000, b"[" * 200_000])
        (place / name).write_bytes(changed)

    return write


def _documents(name: str, content: bytes) -> list[bytes]:
    return content.splitlines() if name.endswith("l") else [content]


def _read_ledger(place: Path) -> None:
    ledger = RunFolder(place).read_ledger()
    _check_ledger(ledger.to_json())
    believe(ledger.num_releases >= 0, "less than no release")
    believe(ledger.costs is not None, "no costs")


def _read_metrics(place: Path) -> None:
    folder = RunFolder(place)
    lines = folder.read_metrics()
    believe(all(isinstance(line, dict) for line in lines), "a line that is no object")
    folder.take_up(secure=False)
    load_metrics(place)


def _write_shared(valid: Path, place: Path, dice: Dice) -> None:
    ledger = read_json(valid / RUN / "ledger.json")
    told = {"version": 2, "epsilon": 8.0, "delta": 1e-5, "relation": "add-or-remove-one"}
    if dice.random() < 0.8:
        registered = [{"cost": item["cost"], "rounds": 4} for item in ledger["releases"]]
        told |= {"order": 4.0, "registered": registered}
    write_json(place / _SHARED, changed_tree(dice, {**told, "ledger": ledger}))
    if dice.random() < 0.2:
        (place / _SHARED).write_bytes(changed_bytes(dice, (place / _SHARED).read_bytes()))


def _read_shared(place: Path) -> None:
    shared = read_shared(place / _SHARED)
    believe(0.0 < shared.epsilon < math.inf and 0.0 < shared.delta < 1.0, "no budget")
    _check_ledger(shared.ledger.to_json())


def _write_identity(valid: Path, place: Path, dice: Dice) -> None:
    """A secure run's identity, and the seed that is kept apart from it."""
    (place / "config.toml").write_text('[privacy]\nnoise = "secure"\n', encoding="utf-8")
    told = {"version": FORMAT, "fedsim": "0.2.0", "sources": {"text": "a" * 64}, "id": "0" * 32}
    if dice.random() < 0.3:
        told["id"] = pick(
            dice, ["../../outside/secret", "../" * 10 + "a", "0" * 32 + "\n", "é" * 32]
        )
    kept = place / "cache" / "seeds" / f"{'0' * 32}.json"
    kept.parent.mkdir(parents=True)
    write_json(kept, {"seed": 7})
    if dice.random() < 0.5:
        write_json(kept, changed_tree(dice, {"seed": 7}))
    else:
        told = changed_tree(dice, told)
    write_json(place / "run.json", told)
    odd = pick(dice, [kept, place / "run.json"])
    if dice.random() < 0.2:
        odd.write_bytes(pick(dice, [b"", b"\xff", b"[" * 100_000, b"9" * 5000]))


def _read_identity(place: Path) -> None:
    with patch.dict("os.environ", {"FEDSIM_CACHE": str(place / "cache")}):
        seed = RunFolder(place).data_seed(RunFolder(place).read_config())
        check_sources(place / "run.json", {"text": "a" * 64})
    believe(type(seed) is int, f"the seed {seed!r}")


def _write_seconds(valid: Path, place: Path, dice: Dice) -> None:
    write_json(place / "seconds.json", odd_value(dice))
    if dice.random() < 0.3:
        (place / "seconds.json").write_bytes(pick(dice, [b"", b"{", b"\xff", b"[" * 100_000]))


def _read_seconds(place: Path) -> None:
    seconds = RunFolder(place).read_seconds()
    believe(0.0 <= seconds < math.inf, f"{seconds} seconds")


def _write_folder(valid: Path, place: Path, dice: Dice) -> None:
    """A whole finished run in which one file is damaged."""
    shutil.copytree(valid / RUN, place / RUN)
    files = sorted(
        path
        for path in (place / RUN).rglob("*")
        # Other config, other run: hostile configs have a target of their own.
        if path.is_file() and path.name not in ("config.toml", "report.html")
    )
    path = pick(dice, files)
    if path.suffix == ".json" and dice.random() < 0.6:
        write_json(path, changed_tree(dice, read_json(path)))
    else:
        path.write_bytes(changed_bytes(dice, path.read_bytes()))


def _read_compared(place: Path) -> None:
    believe(len(compare([place / RUN], place / "out").runs) == 1, "not one run")


def _read_evaluated(place: Path) -> None:
    found = evaluate_run(place / RUN)
    believe(set(found["stages"]) == {"initial", "final"}, "not two stages")


def _read_attacked(place: Path) -> None:
    report = attack_run(place / RUN, samples=[1], checkpoints=True)
    believe(0.0 <= report.auroc <= 1.0, "an AUROC that is none")


def _attacked(valid: Path) -> None:
    finished_run(valid)
    if not (valid / RUN / "attack").exists():
        attack_run(valid / RUN, samples=[1], checkpoints=True)
    if not checkpoints_in(valid / RUN / "checkpoints"):
        raise RuntimeError("the sample run has no checkpoint")


def _read_report(place: Path) -> None:
    report = load_report(place)
    again = type(report).model_validate_json(report.model_dump_json())
    believe(again.model_dump_json() == report.model_dump_json(), "a report that changes")


TARGETS = (
    Target("checkpoint", _write_checkpoint, _read_checkpoint, prepare=finished_run),
    Target("ledger", _write_file("ledger.json"), _read_ledger, prepare=finished_run),
    Target("metrics", _write_file("metrics.jsonl"), _read_metrics, prepare=finished_run),
    Target("report", _write_file("report.json"), _read_report, prepare=finished_run),
    Target("shared ledger", _write_shared, _read_shared, prepare=finished_run),
    Target("identity", _write_identity, _read_identity),
    Target("seconds", _write_seconds, _read_seconds),
    Target("run folder, compared", _write_folder, _read_compared, prepare=_attacked),
    Target("run folder, evaluated", _write_folder, _read_evaluated, prepare=_attacked),
    Target("run folder, attacked", _write_folder, _read_attacked, prepare=_attacked),
)
