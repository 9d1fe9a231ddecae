"""The two messages of a round: a shard of the cohort goes out, one weighted sum comes back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from pydantic import BaseModel, ConfigDict

from fedsim.config import DataConfig, ModelConfig, Precision
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys
from fedsim.grids.arrays import to_record, views_of
from fedsim.plan import TaskSpec


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
        """Read a message's content."""
        head = content.config_records["request"]
        keys = content.array_records["units"]["keys"].numpy()
        return cls(
            spec=str(head["spec"]),
            clip=str(head["clip"]),
            round=int(head["round"]),  # type: ignore[arg-type]
            shard=int(head["shard"]),  # type: ignore[arg-type]
            keys=np.asarray(keys, dtype=np.int64),
            parameters=content.array_records["parameters"],
        )


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
        """Read a reply's content; the sum's tensors may be read-only."""
        counts = content.metric_records["counts"]
        total = WeightedSum(
            values=views_of(content.array_records["sum"]),
            weight=float(counts["weight"]),  # type: ignore[arg-type]
            num_units=int(counts["num_units"]),  # type: ignore[arg-type]
            num_non_finite=int(counts["num_non_finite"]),  # type: ignore[arg-type]
            num_gradients=int(counts["num_gradients"]),  # type: ignore[arg-type]
            loss=float(counts["loss"]),  # type: ignore[arg-type]
            num_unclipped=int(counts["num_unclipped"]),  # type: ignore[arg-type]
        )
        return cls(int(counts["shard"]), total)  # type: ignore[arg-type]
