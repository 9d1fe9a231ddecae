"""The two messages of a round: a shard of the cohort goes out, one weighted sum comes back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import BaseModel, ConfigDict

from fedsim.config import ModelConfig, Precision
from fedsim.data.config import DataConfig
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys
from fedsim.grids.arrays import to_record, views_of
from fedsim.plan import TaskSpec
from fedsim.utils.json_text import is_count

_COUNTS = (
    "shard",
    "num_units",
    "num_non_finite",
    "num_gradients",
    "num_unclipped",
)


class ClientSpec(BaseModel):
    """What a client must know of a run: the same JSON in every one of its messages.

    What changes from round to round (the parameters, the clip) stands beside it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    data: DataConfig
    model: ModelConfig
    task: TaskSpec
    engine: str
    device: str
    precision: Precision = "float32"
    data_seed: int | None = None  # as `load_materials` takes it


@dataclass(frozen=True, eq=False)
class ShardRequest:
    """Compute Σ w·clip(update) over `keys` at `parameters`, a record that shards share.

    `spec` and `clip` are JSON, of a `ClientSpec` and of a clip.
    """

    spec: str
    clip: str
    round: int
    shard: int
    keys: Keys
    parameters: ArrayRecord

    def to_content(self) -> RecordDict:
        """Return the message's content."""
        keys = ArrayRecord()
        keys["keys"] = to_record({"keys": torch.from_numpy(self.keys)})["keys"]
        head = ConfigRecord(
            {"spec": self.spec, "clip": self.clip, "round": self.round, "shard": self.shard}
        )
        return RecordDict({"request": head, "units": keys, "parameters": self.parameters})

    @classmethod
    def from_content(cls, content: RecordDict) -> ShardRequest:
        """Read a message's content.

        Raises:
            ValueError: a part is missing, or is not what `to_content` writes.
        """
        try:
            head = content.config_records["request"]
            keys = content.array_records["units"]["keys"].numpy()
            parameters = content.array_records["parameters"]
            texts, numbers = [head["spec"], head["clip"]], [head["round"], head["shard"]]
        except Exception as error:  # Flower has errors of its own kinds for what it cannot open
            raise ValueError(f"a request: {type(error).__name__}: {error}") from error
        if not all(isinstance(text, str) for text in texts) or not all(map(is_count, numbers)):
            raise ValueError("a request: spec and clip are not texts, or round and shard no counts")
        if keys.dtype != np.int64 or keys.ndim != 1:
            raise ValueError(f"a request: keys are {keys.dtype} of shape {keys.shape}")
        return cls(str(texts[0]), str(texts[1]), int(numbers[0]), int(numbers[1]), keys, parameters)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class ShardReply:
    """The weighted sum of one shard, under the shard's number."""

    shard: int
    total: WeightedSum

    def to_content(self) -> RecordDict:
        """Return the reply's content."""
        total = self.total
        counts = MetricRecord(
            {
                "shard": self.shard,
                "weight": total.weight,
                "num_units": total.num_units,
                "num_non_finite": total.num_non_finite,
                "num_gradients": total.num_gradients,
                "loss": total.loss,
                "num_unclipped": total.num_unclipped,
            }
        )
        return RecordDict({"counts": counts, "sum": to_record(total.values)})

    @classmethod
    def from_content(cls, content: RecordDict) -> ShardReply:
        """Read a reply's content; the sum's tensors may be read-only.

        Raises:
            ValueError: a part is missing, or is not what `to_content` writes.
        """
        try:
            counts, arrays = content.metric_records["counts"], content.array_records["sum"]
            values, loss = views_of(arrays), float(counts["loss"])  # type: ignore[arg-type]
            whole = {name: counts[name] for name in _COUNTS}
            weight = float(counts["weight"])  # type: ignore[arg-type]
        except Exception as error:  # Flower has errors of its own kinds for what it cannot open
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if any(value.dtype != torch.float64 for value in values.values()):
            raise ValueError("a sum that is not float64")
        if not all(is_count(count) for count in whole.values()) or not math.isfinite(loss):
            raise ValueError(f"counts that are none: {dict(counts)!r}")
        numbers = {name: int(count) for name, count in whole.items()}  # type: ignore[arg-type]
        shard = numbers.pop("shard")
        return cls(shard, WeightedSum(values=values, weight=weight, loss=loss, **numbers))
