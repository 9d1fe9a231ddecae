"""The Flower ClientApp: a shard of units in, one weighted sum out."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsim.clients.engines.clipped_sums import float32_products
from fedsim.clipping import clip_from_json
from fedsim.execution import Engine, Task
from fedsim.grids.records import (
    ClientSpec,
    ParametersOnDevice,
    ShardRequest,
)
from fedsim.grids.sharding import most_tokens_per_unit
from fedsim.materials import Materials, check_device, load_materials
from fedsim.registry import resolve

app = ClientApp()
_on_device = ParametersOnDevice()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Compute the clipped, weighted sum of one shard."""
    request = ShardRequest.from_content(message.content)
    task, engine, materials = prepared(request.spec)
    clip = clip_from_json(request.clip)
    parameters = _on_device(request.parameters, materials.model.device)
    with float32_products():
        total = engine(task, parameters, request.keys, clip, request.round)
    return Message(request.reply(total).to_content(), reply_to=message)


@lru_cache(maxsize=4)
def prepared(spec_json: str) -> tuple[Task, Engine, Materials]:
    """Build the task, engine and materials of a run; a long-lived worker does so once per run."""
    # Not at the top: Flower's simulation imports this module in one thread while the ServerApp
    # loads its model in another, and transformers cannot be imported in two at once.
    from fedsim.clients.engine_choice import choose_engine  # noqa: PLC0415
    from fedsim.clients.models.checkpointing import checkpointed  # noqa: PLC0415
    from fedsim.clients.models.mixed_precision import in_precision  # noqa: PLC0415

    spec = ClientSpec.model_validate_json(spec_json)
    with suppress(OSError):  # another machine may have no such folder
        os.chdir(spec.folder)
    check_device(spec.device)
    materials = load_materials(spec.seed, spec.data, spec.model, spec.device, spec.data_seed)
    if spec.text_digest not in (None, materials.text_digest):
        raise RuntimeError(
            f"data.source = {spec.data.source!r}: this worker reads another text there than the "
            "server; give both the same text, and start the run again"
        )
    if spec.frozen_digest not in (None, materials.frozen_digest):
        raise RuntimeError(
            f"model.name_or_path = {spec.model.name_or_path!r}: this worker reads other weights "
            "there than the server; give both the same weights, and start the run again"
        )
    model = in_precision(checkpointed(materials.model, spec.checkpointing), spec.precision)
    materials = replace(materials, model=model)
    task: Task = resolve("tasks", spec.task.name, "task")(materials, **spec.task.options)
    size = most_tokens_per_unit(materials, spec.task.options.get("group_size"))
    engine = choose_engine(spec.engine, task, materials.model, size, spec.gpu_share)
    return task, engine, materials
