"""A whole round of a large model on two workers, and the share of it besides gradients.

`python -m fedsim.experiments.benchmarks.server.large_round NAME CONFIG` prints the row of a model.
CONFIG is a model config, as transformers' JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from fedsim.clients.app import prepared
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clipping import clip_from_json
from fedsim.config import ModelConfig
from fedsim.data.config import DataConfig
from fedsim.execution import Engine, Task
from fedsim.experiments.benchmarks.grids.bytes import Watched
from fedsim.experiments.benchmarks.grids.population import plan_of
from fedsim.experiments.benchmarks.timing import Row, row_of
from fedsim.grids.executor import GridExecutor
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from fedsim.grids.records import ClientSpec, ParametersOnDevice, ShardReply, ShardRequest
from fedsim.materials import load_materials, load_model
from fedsim.plan import TaskSpec
from fedsim.round import run_round
from fedsim.state import ServerState
from fedsim.tensors import Tensors

NAME = "benchmark-timed"
"""The entry point of `app` under `fedsim.client_apps`."""

_TWO = Share(workers=2, cpus=1.0, gpus=0.0)
_COHORT, _GROUP_SIZE, _LENGTH = 64, 4, 64
_ROUNDS = 2

app = ClientApp()
_on_device = ParametersOnDevice()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a shard like fedsim's own app, and add the seconds of its engine."""
    request = ShardRequest.from_content(message.content)
    task, engine, materials = prepared(request.spec)
    parameters = _on_device(request.parameters, materials.model.device)
    reply, taken = timed_reply(message, request, parameters, task, engine)
    reply.content["timing"] = MetricRecord({"engine": taken})
    return reply


def timed_reply(
    message: Message, request: ShardRequest, parameters: Tensors, task: Task, engine: Engine
) -> tuple[Message, float]:
    """Return the reply of a shard, and the seconds of the engine alone."""
    clip = clip_from_json(request.clip)
    started = time.perf_counter()
    total = engine(task, parameters, request.keys, clip, request.round)
    float(next(iter(total.values.values())).flatten()[0])  # wait for a GPU
    taken = time.perf_counter() - started
    return Message(
        ShardReply(request.round, request.shard, total).to_content(), reply_to=message
    ), taken


def large_round(name: str, config: PretrainedConfig) -> Row:
    """Return the seconds of whole rounds that train all parameters, and the share `outside`.

    Weights are random; the cohort is all of the speakers with the most text. `outside` is the share
    of a round in which the slower worker's engine did not compute.
    """
    with TemporaryDirectory() as folder:
        save_random(config, Path(folder))
        spec = ClientSpec(
            seed=0,
            data=DataConfig(sequence_length=_LENGTH, cutting="split"),
            model=ModelConfig(name_or_path=folder),
            task=TaskSpec(name="fedsgd", options={"group_size": _GROUP_SIZE}),
            engine="auto",
            device="cpu",
        )
        materials = load_materials(spec.seed, spec.data, spec.model, spec.device)
        largest = np.argsort(materials.split.user_sizes)[-_COHORT:]
        plan = replace(plan_of(_COHORT, _COHORT), pool=np.sort(largest).astype(np.int64))
        state = ServerState(0, materials.model.initial_parameters())
        seconds, outside = [], []
        with RayGrid(NAME, _TWO) as grid:
            watched = Watched(grid)
            executor = GridExecutor(cast("Grid", watched), spec)
            for _ in range(1 + _ROUNDS):
                started = time.perf_counter()
                state, _ = run_round(state, plan, executor)
                seconds.append(time.perf_counter() - started)
                outside.append(1.0 - max(watched.engine_seconds) / seconds[-1])
    return row_of(
        "server",
        f"{name}: a whole round on two workers",
        "ray",
        seconds[1:],
        details={
            "outside": median(outside[1:]),
            "users": _COHORT,
            "tokens_per_user": _GROUP_SIZE * _LENGTH,
            "bytes": watched.num_bytes,
        },
    )


def save_random(config: PretrainedConfig, folder: Path) -> None:
    """Save a model with random weights and the small model's tokenizer."""
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    own = cast("TransformersModel", load_model(ModelConfig(pretraining_steps=0)))
    own.tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    given = AutoConfig.for_model(**json.loads(sys.argv[2]))
    sys.stdout.write(json.dumps(large_round(sys.argv[1], given)) + "\n")
