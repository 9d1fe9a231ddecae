"""A few architectures by the sweep that tries all, and a wrong sum, which it must see."""

from __future__ import annotations

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
from tests.robustness.architectures import BOUNDS, markdown, sweep, tried


def test_a_dense_one_a_mixture_of_experts_and_one_that_is_refused() -> None:
    rows = sweep(["llama", "mixtral", "xlnet"])
    assert not any(row.failures for row in rows)
    table = markdown(rows)
    assert "| materialised | materialised | 1 | `llama` |" in table
    assert "| loop | loop | 1 | `mixtral` |" in table
    assert "refused: its logits depend on tokens after them" in table
    compared = rows[0].differences
    for kind in ("all", "lora"):
        assert 0 < compared[f"{kind}, ghost and loop"] <= BOUNDS[""]
        assert f"{kind}, vmap, with and without others" in compared
        assert f"{kind}, loop and the definition" in compared
    assert {"lora, saved, read back", "lora, adapter, read back"} <= compared.keys()
    assert rows[2].differences == {}


def test_a_sum_that_differs_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with quietly():
        row = tried("llama", tmp_path)
    assert "all, materialised and loop: 2.0e-05" in row.failures
    assert "| FAILED | FAILED | 1 | `llama`" in markdown([row])
