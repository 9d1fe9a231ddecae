"""A ClientApp that answers a shard without computing gradients."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsim.clipping import FlatClip
from fedsim.config import ModelConfig
from fedsim.data.config import DataConfig
from fedsim.estimators import WeightedSum
from fedsim.grids.records import ClientSpec, ParametersOnDevice, ShardRequest
from fedsim.plan import TaskSpec
from fedsim.tensors import zeros_like

NAME = "benchmark-null"
"""Its entry point under `fedsim.client_apps`."""

_TENSORS = 50  # about the number in a small GPT

CLIP = FlatClip(l2_clip_norm=1.0)
"""The clip of every message."""

app = ClientApp()
_on_device = ParametersOnDevice()


def parameters_of(count: int) -> dict[str, torch.Tensor]:
    """Return `count` zeros in fifty tensors."""
    return {f"layer.{i}.weight": torch.zeros(count // _TENSORS) for i in range(_TENSORS)}


def null_spec() -> ClientSpec:
    """Return a client specification; this client ignores it."""
    return ClientSpec(
        seed=0,
        data=DataConfig(),
        model=ModelConfig(),
        task=TaskSpec(name="fedsgd"),
        engine="auto",
        device="cpu",
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return a sum of real size, with the requested number of units.

    The parameters are read, as a real client reads them. Messages of Flower's own strategies (with
    "arrays") get their arrays back, as from a Flower client.
    """
    if "request" not in message.content:
        return _stock(message)
    request = ShardRequest.from_content(message.content)
    parameters = _on_device(request.parameters, torch.device("cpu"))
    values = zeros_like(parameters, torch.float64)
    total = WeightedSum(values, weight=float(len(request.keys)), num_units=len(request.keys))
    return Message(request.reply(total).to_content(), reply_to=message)


def _stock(message: Message) -> Message:
    arrays = message.content.array_records["arrays"].to_torch_state_dict()
    content = RecordDict()
    content["arrays"] = ArrayRecord(arrays)
    content["metrics"] = MetricRecord({"num-examples": 1})
    return Message(content, reply_to=message)
