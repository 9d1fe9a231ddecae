"""The server's part of a round at the size of real models, compared with memory speed.

Each part's `ratio_to_floor` is relative to one pass that copies the parameters and adds to the
copy. For the noise it is relative to the fastest available generator of normals, on all cores.

`python -m fedsim.experiments.benchmarks.server.bench_server CONFIG` prints the peak memory of two
rounds, in float32 copies of the parameters. CONFIG is a model config, as transformers' JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig

from fedsim.accounting.ledger import Ledger
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys
from fedsim.experiments.benchmarks.grids.population import plan_of
from fedsim.experiments.benchmarks.server import large_round
from fedsim.experiments.benchmarks.timing import Row, in_own_process, interleaved, times_as_long
from fedsim.noise.gaussian import CHUNK, release_
from fedsim.noise.matrix import NoiseMatrix, banded_matrix, buffered_matrix
from fedsim.noise.memory import NoiseMemory
from fedsim.round import run_round
from fedsim.runner.training import check_parameters
from fedsim.seeding import NoiseKey, noise_key, secret_noise_key
from fedsim.state import ServerState
from fedsim.tensors import Tensors, fold_, zeros_like
from fedsim.utils.machine import keep_freed_memory, peak_memory_bytes

_TURNS = 5
_ROUNDS, _BANDS = 64, 4  # size of the matrices that correlate noise
_MOST_REMEMBERED = 6 * 2**30  # maximum bytes that the banded matrix may keep
SUMS = 4  # limited by memory

MODELS: Mapping[str, PretrainedConfig] = {
    "SmolLM2-135M": LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    ),
    "gpt2-medium, 350M": GPT2Config(n_embd=1_024, n_layer=24, n_head=16),
}


def run(models: Mapping[str, PretrainedConfig] = MODELS) -> list[Row]:
    """Return the rows of each model: parts, noise, peak."""
    rows: list[Row] = []
    if (name := "SmolLM2-135M") in models:  # first, as this process keeps the memory of later parts
        rows.append(in_own_process(large_round.__name__, name, models[name].to_json_string()))
    for name, config in models.items():
        shapes = shapes_of(config)
        rows += _parts(name, shapes) + _sums(name, shapes) + _noise(name, shapes)
        if name in MODELS:
            peak = in_own_process(__name__, config.to_json_string())
            rows.append(Row(benchmark="server", case=f"{name}: peak", seconds=None, details=peak))
    return rows


def shapes_of(config: PretrainedConfig) -> dict[str, torch.Size]:
    """Return the shapes of a model's parameters, without allocating them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return {name: value.shape for name, value in model.named_parameters()}


def _random(shapes: Mapping[str, torch.Size], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.empty(shape, dtype=torch.float32).normal_(generator=generator).to(dtype)
        for name, shape in shapes.items()
    }


def _parts(model: str, shapes: Mapping[str, torch.Size]) -> list[Row]:
    plan = plan_of(1_000, 100)
    values, total = _random(shapes, torch.float32), _random(shapes, torch.float64)
    _, moments = plan.optimizer.step(values, dict(total), {})
    state = ServerState(1, values, moments)

    def estimate() -> dict[str, torch.Tensor]:
        return release_(total, 1.0, 0.0, plan.draws.noise(0))[0]

    def step() -> ServerState:
        return replace(state, parameters=plan.optimizer.step(values, dict(total), moments)[0])

    def server() -> None:
        release = estimate()
        ledger = Ledger().charge(1, plan.cost, plan.draws.release_id)
        parameters, after = plan.optimizer.step(values, release, moments)
        check_parameters(ServerState(2, parameters, after, ledger))

    tasks: dict[str, Callable[[], Any]] = {
        "copy and add": _copy_and_add(values),
        "estimate": estimate,
        "ledger": lambda: Ledger().charge(1, plan.cost, plan.draws.release_id),
        "Adam's step": step,
        "is finite": lambda: check_parameters(state),
        "all but noise": server,
    }
    return _rows(model, shapes, tasks, "copy and add")


def _copy_and_add(values: Tensors) -> Callable[[], None]:
    """Return the floor: one pass that copies the values and adds to the copy."""
    copy = zeros_like(values)

    def task() -> None:
        for name, value in values.items():
            copy[name].copy_(value).add_(value)

    return task


def _sums(model: str, shapes: Mapping[str, torch.Size]) -> list[Row]:
    """Return the row of receiving the sums of `SUMS` workers: their norms, and the total."""
    sums = [_random(shapes, torch.float32) for _ in range(SUMS)]
    total = zeros_like(sums[0], torch.float64)
    tasks: dict[str, Callable[[], Any]] = {
        "copy and add": _copy_and_add(sums[0]),
        f"sums of {SUMS} workers": lambda: fold_(total, sums),
    }
    return _rows(model, shapes, tasks, "copy and add")[1:]


def _noise(model: str, shapes: Mapping[str, torch.Size]) -> list[Row]:
    total = _random(shapes, torch.float64)
    count = sum(map(torch.Size.numel, shapes.values()))
    tasks: dict[str, Callable[[], Any]] = {
        "fastest generator": lambda: _drawn(count, _normals_of_torch),
        "numpy's fastest in float64": lambda: _drawn(count, _normals_of_numpy),
        "estimate and noise, seeded": lambda: release_(total, 1.0, 1.0, noise_key(0, "noise", 0)),
        "estimate and noise, secure": lambda: release_(total, 1.0, 1.0, secret_noise_key()),
    }
    if 8 * _BANDS * count < _MOST_REMEMBERED:
        banded, buffered = banded_matrix(_ROUNDS, _BANDS), buffered_matrix(_ROUNDS, _BANDS, 2)
        tasks[f"estimate and noise, {_BANDS} bands"] = _correlated(total, banded)
        tasks["estimate and noise, BLT of 2 buffers"] = _correlated(total, buffered)
    return _rows(model, shapes, tasks, "fastest generator")


def _correlated(total: dict[str, torch.Tensor], matrix: NoiseMatrix) -> Callable[[], Any]:
    """Return a function that releases with the next round's noise in each call."""
    rounds, memory = itertools.count(), NoiseMemory()

    def key(round: int) -> NoiseKey:
        return noise_key(0, "noise", round)

    def release() -> None:
        round = next(rounds)
        before = memory.before(round, matrix, key, total)
        release_(total, 1.0, 1.0, key(round), before)

    return release


def _drawn(count: int, generator: Callable[[int], Callable[[], object]]) -> None:
    """Draw `count` normals on all cores, in chunks that fit in the cache."""
    threads = torch.get_num_threads()

    def draw(thread: int) -> None:
        chunk = generator(thread)
        for _ in range(count // CHUNK // threads):
            chunk()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(draw, range(threads)))


def _normals_of_torch(seed: int) -> Callable[[], object]:
    """Return a function that draws a chunk in float32."""
    generator, room = torch.Generator().manual_seed(seed), torch.empty(CHUNK)
    return lambda: room.normal_(generator=generator)


def _normals_of_numpy(seed: int) -> Callable[[], object]:
    """Return a function that draws a float64 chunk, like our noise, by numpy's fastest stream."""
    generator, room = np.random.Generator(np.random.SFC64(seed)), np.empty(CHUNK)
    return lambda: generator.standard_normal(out=room)


def _rows(
    model: str,
    shapes: Mapping[str, torch.Size],
    tasks: Mapping[str, Callable[[], Any]],
    floor: str,
) -> list[Row]:
    parameters = sum(map(torch.Size.numel, shapes.values()))
    interleaved(tasks, [*tasks])  # not counted
    seconds = interleaved(tasks, [*tasks] * _TURNS)
    return [
        Row(
            benchmark="server",
            case=f"{model}: {name}",
            seconds=median(taken),
            ratio_to_floor=times_as_long(taken, seconds[floor]),
            repetitions=_TURNS,
            details={
                "parameters": parameters,
                "floor": floor,
                "nanoseconds_per_parameter": 1e9 * median(taken) / parameters,
            },
        )
        for name, taken in seconds.items()
    ]


class _Given:
    """Executor that returns a sum of real size."""

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        return replace(WeightedSum.zero(parameters), num_units=len(cohort))


def peak_of(config: PretrainedConfig) -> dict[str, float]:
    """Return this process's peak over two rounds, minus that of rounds with a single parameter.

    The subtracted rounds import everything that a round needs.
    """
    keep_freed_memory()
    _two_rounds({"w": torch.Size([1])})
    shapes = shapes_of(config)
    before = peak_memory_bytes()
    copy = 4 * _two_rounds(shapes)
    peak = peak_memory_bytes() - before
    return {"peak_bytes": peak, "float32_copies": peak / copy}


def _two_rounds(shapes: Mapping[str, torch.Size]) -> int:
    """Run two rounds (the first has no moments), and return the number of parameters."""
    state = ServerState(0, _random(shapes, torch.float32))
    plan = plan_of(1_000, 100)
    for _ in range(2):
        state, _ = run_round(state, plan, _Given(), keep=False)  # as `train` does
        check_parameters(state)
    return sum(value.numel() for value in state.parameters.values())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(peak_of(AutoConfig.for_model(**json.loads(sys.argv[1])))) + "\n")
