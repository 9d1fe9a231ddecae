"""The Flower ClientApp: a shard of units in, one weighted sum out."""

from __future__ import annotations

from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.engines.choose import choose_engine
from fedsim.clipping import Clip
from fedsim.execution import Engine, Task
from fedsim.grids.records import ClientSpec, ShardReply, ShardRequest
from fedsim.materials import Materials, load_materials
from fedsim.registry import resolve

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one shard."""
    request = ShardRequest.from_content(message.content)
    task, engine, clip, materials = _prepared(request.spec)
    parameters = {
        name: value.to(materials.model.device) for name, value in request.parameters.items()
    }
    total = engine(task, parameters, request.keys, clip, request.round)
    return Message(ShardReply(request.shard, total).to_content(), reply_to=message)


@lru_cache(maxsize=4)
def _prepared(spec_json: str) -> tuple[Task, Engine, Clip, Materials]:
    """Build what a run's messages have in common; a long-lived worker does it once a run."""
    spec = ClientSpec.model_validate_json(spec_json)
    materials = load_materials(spec.seed, spec.data, spec.model, spec.device)
    task: Task = resolve("tasks", spec.task.name, "task")(materials, **spec.task.options)
    return task, choose_engine(spec.engine, task, materials.model), spec.clip, materials
