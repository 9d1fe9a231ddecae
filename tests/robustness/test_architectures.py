"""A few architectures by the command that tries all, and what it says when a sum is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Engine, Keys, Task
from fedsim.tensors import Tensors
from fedsim.utils.terminal import quietly
from tests.robustness import architectures
from tests.robustness.__main__ import app


def status(order: Sequence[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["architectures", *order])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_a_dense_one_a_mixture_of_experts_and_one_that_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    order = ["llama", "mixtral", "xlnet", "--out", str(out)]
    assert status(order) == 0
    table = capsys.readouterr().out
    assert "| materialised | materialised | 1 | `llama` |" in table
    assert "| loop | loop | 1 | `mixtral` |" in table
    assert "refused: its logits depend on tokens after them" in table
    rows = {row["name"]: row for row in map(json.loads, out.read_text().splitlines())}
    compared = rows["llama"]["differences"]
    for kind in ("all", "lora"):
        assert 0 < compared[f"{kind}, ghost and loop"] <= 1e-5
        assert f"{kind}, vmap, with and without others" in compared
        assert f"{kind}, loop and the definition" in compared
    assert {"lora, saved, read back", "lora, adapter, read back"} <= compared.keys()
    assert rows["xlnet"]["differences"] == {}

    out.write_text("\n".join(json.dumps(row) for row in rows.values()) + "\n")
    written = out.stat()
    assert status(order) == 0  # all are there
    assert capsys.readouterr().out == table
    assert out.stat() == written


def test_a_sum_that_differs_is_told_and_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_large(model: OpenModel) -> Engine:
        engine = materialised(model)

        def sums(
            task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
        ) -> WeightedSum:
            total = engine(task, parameters, keys, clip, round)
            values = {name: 1.00002 * value for name, value in total.values.items()}
            return WeightedSum(values, total.weight, total.num_units)

        return sums

    monkeypatch.setattr(architectures, "materialised", too_large)
    monkeypatch.setattr(
        architectures, "in_its_own_process", lambda name: architectures.tried(name, tmp_path)
    )
    with quietly():
        code = status(["llama"])
    assert code == 1
    table = capsys.readouterr().out
    assert "| FAILED | FAILED | 1 | `llama` (all, materialised and loop: 2.0e-05; lora," in table


def test_names_that_transformers_lacks_are_refused() -> None:
    assert status(["no-such-network"]) == 2
