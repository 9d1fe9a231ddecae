"""`fedsim bench engines` and `peers`: whole small cases, wrong sums are refused, and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.engines.loop import loop
from fedsim.clients.tasks.fedavg import LocalSteps, local_steps
from fedsim.clipping import Clip, NoClip
from fedsim.errors import ConfigError
from fedsim.estimators import WeightedSum
from fedsim.execution import Engine, Keys, Task
from fedsim.experiments.benchmarks.engines import measured
from fedsim.experiments.benchmarks.engines.cases import (
    LOCAL_LEARNING_RATE,
    Case,
    Kind,
    rectangular,
    workload,
)
from fedsim.experiments.benchmarks.engines.floor import StrongFloor, floor
from fedsim.experiments.benchmarks.page import write
from fedsim.experiments.benchmarks.peers import install, run
from fedsim.experiments.benchmarks.peers.partner import distance
from fedsim.experiments.benchmarks.timing import Row, interleaved, row_of, times_as_long
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import Patch


def small(kind: Kind, group_size: int = 2) -> Case:
    return Case(kind, "tiny-gpt", num_units=2, group_size=group_size, sequence_length=8)


def measure(case: Case, *names: str) -> list[Row]:
    return measured.measured(case, names, (2, 4), repetitions=(2, 1), compiles=False)


@pytest.fixture
def seconds(monkeypatch: Patch) -> dict[str, list[float]]:
    """Seconds of each turn of the case that is measured, by the task's name."""
    taken: dict[str, list[float]] = {}

    def remembered(*arguments: Any) -> dict[str, list[float]]:  # noqa: ANN401
        taken.update(interleaved(*arguments))
        return taken

    monkeypatch.setattr(f"{measured.__name__}.interleaved", remembered)
    return taken


def seconds_of(row: Row) -> float:
    assert row["seconds"] is not None
    return row["seconds"]


@pytest.mark.parametrize("kind", ["uls", "els", "fedavg"])
def test_a_small_case_from_end_to_end(kind: Kind, seconds: dict[str, list[float]]) -> None:
    rows = measure(small(kind), "auto", "loop")
    names = ["floor", "auto", "loop", "strong floor", "whole round"]
    assert [row["engine"] for row in rows] == names
    assert [row["repetitions"] for row in rows] == [2, 2, 1, 2, 2]
    for row in rows:
        assert row["benchmark"] == "engines"
        assert row["case"] == ("uls/tiny-gpt/2" if kind == "uls" else f"{kind}/tiny-gpt")
        if row in rows[:3]:
            expected = times_as_long(seconds[row["engine"]], seconds["floor"])
            assert row["ratio_to_floor"] == expected > 0.0
        assert row["seconds"] == median(seconds[row["engine"]])
        assert row["details"]["tokens_per_second"] == pytest.approx(2 * 2 * 8 / seconds_of(row))
        json.dumps(row)
    assert rows[0]["ratio_to_floor"] == 1.0
    assert rows[3]["ratio"] == times_as_long(seconds["floor"], seconds["strong floor"])
    assert rows[3]["details"]["compiled"] is False
    assert 1.0 < rows[4]["ratio_to_floor"] < 1000.0
    assert rows[0]["details"]["batch_size"] in (2, 4)
    assert rows[1]["details"]["relative_difference"] < 1e-4
    assert rows[2]["details"]["relative_difference"] == 0.0


def test_real_users_stand_beside_rectangular_ones_of_as_many_tokens(
    seconds: dict[str, list[float]],
) -> None:
    case = Case("uls-ragged", "tiny-gpt", num_units=3, group_size=4, sequence_length=16)
    ragged = workload(case)
    assert len({int(length) for unit in ragged.units for length in unit.lengths}) > 1
    even = rectangular(ragged, case)
    assert abs(even.num_tokens - ragged.num_tokens) <= 8
    rows = {row["engine"]: row for row in measure(case, "auto")}
    assert rows.keys() == {"floor", "auto", "auto, rectangular", "strong floor", "whole round"}
    assert rows["strong floor"]["details"]["tokens"] == even.num_tokens
    expected = times_as_long(seconds["auto"], seconds["auto, rectangular"])
    assert rows["auto"]["details"]["ratio_to_rectangular"] == expected
    assert rows["floor"]["details"]["tokens"] == even.num_tokens


def test_the_floor_is_the_sum_that_clipping_bounds() -> None:
    """Whatever the batches: the unclipped sum over units, where each brings one example."""
    work = workload(small("els", 1))
    total = loop(work.task, work.parameters, work.keys, NoClip(), 0).values
    for batch_size in (1, 2):
        found = dict(zip(work.parameters, floor(work, batch_size), strict=True))
        assert distance(found, total) < 1e-5


@pytest.mark.parametrize(("model", "attention"), [("tiny-gpt", "sdpa"), ("mcmahan-lstm", "eager")])
def test_the_strong_floor_trains_by_the_floors_gradient(model: str, attention: str) -> None:
    """By other attention: the same sum, and one step of Adam along it."""
    work = workload(replace(small("els"), model=model))
    strong = StrongFloor(work, 1, compiles=False)
    values = {k: v for k, v in strong._module.named_parameters() if v.requires_grad}
    for name, value in work.parameters.items():
        values[name].data.copy_(value)
    before = {name: value.detach().clone() for name, value in values.items()}
    for rows in strong._batches:
        strong._backward(rows)
    expected = dict(zip(work.parameters, floor(work, 2), strict=True))
    found = {name: value.grad for name, value in values.items() if value.grad is not None}
    apart = {name: found[name] - value for name, value in expected.items()}
    assert l2_norm(apart) < 1e-4 * l2_norm(expected)
    networks = [part for part in strong._module.modules() if isinstance(part, PreTrainedModel)]
    kinds = {str(part.config._attn_implementation) for part in networks}
    assert kinds == {attention}
    strong()
    assert all(not torch.equal(values[name], before[name]) for name in found if found[name].any())


def test_an_engine_that_computes_something_else_is_no_result(monkeypatch: Patch) -> None:
    def choose(name: str, task: Task, model: LanguageModel, tokens: float) -> Engine:
        right = choose_engine(name, task, model, tokens)

        def wrong(
            task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
        ) -> WeightedSum:
            total = right(task, parameters, keys, clip, round)
            half = {key: 0.5 * value for key, value in total.values.items()}
            return replace(total, values=half) if name == "auto" else total

        return wrong

    monkeypatch.setattr(measured, "choose_engine", choose)
    with pytest.raises(RuntimeError, match=r"engine 'auto': its sum is .* away from the loop's"):
        measure(small("uls"), "auto", "loop")


def test_the_floor_computes_in_the_precision_of_the_engines() -> None:
    work = workload(replace(small("els", 1), precision="bfloat16"))
    exact = workload(small("els", 1))
    found = dict(zip(work.parameters, floor(work, 2), strict=True))
    expected = dict(zip(work.parameters, floor(exact, 2), strict=True))
    apart = {name: found[name] - value for name, value in expected.items()}
    assert 1e-4 < l2_norm(apart) / l2_norm(expected) < 0.02


def test_peers_without_their_environment_say_how_to_build_it(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"python -m fedsim.experiments.benchmarks.peers.install"):
        run.run()
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "packages.json").write_text('["pfl==0.5.0"]', encoding="utf-8")
    with pytest.raises(ConfigError, match="other versions"):
        install.python()


def test_a_peer_gets_the_texts_in_the_order_in_which_local_training_takes_them() -> None:
    work = workload(small("fedavg", 5))
    unit = work.task.unit(1, 0)
    ours = work.task.update(work.parameters, unit, 0)
    ordered = replace(unit, tokens=torch.from_numpy(run._in_order(work, 1)), streams=None)
    assert not torch.equal(ordered.tokens, unit.tokens)
    steps = [torch.tensor([row]) for row in range(5)]
    after, _ = local_steps(
        work.model, work.parameters, ordered, steps, LocalSteps(LOCAL_LEARNING_RATE)
    )
    distance({name: value - after[name] for name, value in work.parameters.items()}, ours.values)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": torch.tensor([3.0, 4.001]), "b": torch.zeros(1)}, "away from ours"),
        ({"a": torch.tensor([float("nan"), 4.0]), "b": torch.zeros(1)}, "away from ours"),
        ({"a": -torch.tensor([3.0, 4.0]), "b": torch.zeros(1)}, "away from ours"),
        ({"a": torch.tensor([3.0, 4.0])}, "other tensors"),
        ({"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(2)}, "other tensors"),
    ],
)
def test_a_peers_wrong_sum_is_refused(wrong: Mapping[str, torch.Tensor], message: str) -> None:
    ours = {"a": torch.tensor([3.0, 4.0], dtype=torch.float64), "b": torch.zeros(1)}
    near = {"a": torch.tensor([3.0, 4.0001]), "b": torch.zeros(1)}
    assert distance(near, ours) == pytest.approx(2e-5, rel=1e-2)
    with pytest.raises(RuntimeError, match=message):
        distance(wrong, ours)


def _answer(*rows: Row) -> str:
    return json.dumps({"machine": {"cpus": 2}, "versions": {"torch": "2.13"}, "rows": rows})


def test_the_page_and_the_picture(tmp_path: Path) -> None:
    case = "uls/tiny-gpt/4"
    memory = {"peak_bytes": 5 * 2**30}
    large = {"goal": 1.03, "peak_bytes": 3 * 2**30, "of_arithmetic": 0.9}
    fast = {"tokens_per_second": 1638.4}
    broken = {"result": "RuntimeError: a | b\nand more"}
    rows = [
        row_of("engines", case, "floor", [2.0], ratio_to_floor=1.0, details={}),
        row_of("engines", case, "auto", [2.5], ratio_to_floor=1.25, details=fast),
        row_of("engines", case, "strong floor", [1.6], ratio=1.25, details={}),
        row_of("engines", case, "whole round", [2.6], ratio_to_floor=1.04, details={}),
        row_of("engines", "memory/gpt2-small", "ghost", [3.0], ratio=1.25, details=memory),
        row_of("gpu", "350 M", "auto", [2.0], ratio_to_floor=1.0203, details=large),
        row_of("gpu", "tests", "all", [60.0], details=broken),
    ]
    peer = row_of("peers", case, "pfl", [5.0], ratio=2.0)
    other = Row(benchmark="store", case="open", seconds=0.5)
    part = Row(
        benchmark="server",
        case="tiny: estimate",
        seconds=0.25,
        ratio_to_floor=1.5,
        details={"floor": "copy and add"},
    )
    (tmp_path / "a.json").write_text(_answer(*rows), encoding="utf-8")
    (tmp_path / "b.json").write_text(_answer(peer, other, part), encoding="utf-8")
    write([tmp_path / "a.json", tmp_path / "b.json"], tmp_path)
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    for line in (
        "| uls/tiny-gpt/4 | 2 | 1.25 | 1.25 | 1.04 | 1,638 |",
        "| uls/tiny-gpt/4 | pfl | 5 | 2.00 |",
        "| memory/gpt2-small | ghost | 5.00 | 1.25 |",
        "| 350 M | auto | 2 | 1.020 | 1.03 | – | 0.90 | 3.00 | – |",
        r"| tests | all | 60 | – | – | – | – | – | RuntimeError: a \| b |",
        "| store: open | – | 0.5 | – |",
        "| tiny: estimate | 0.25 | copy and add | 1.50 | – |",
        "- engines, gpu: cpus 2, torch 2.13",
    ):
        assert line in text.splitlines()
    assert (tmp_path / "benchmarks.png").read_bytes().startswith(b"\x89PNG")
