"""The executor of every run: shards of a cohort, sent as Flower messages over any grid."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.clipping import Clip
from fedsim.config import Config
from fedsim.estimators import WeightedSum
from fedsim.execution import Executor, Keys, shards
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.records import (
    ClientSpec,
    ShardReply,
    ShardRequest,
    packages_behind,
    to_record,
)
from fedsim.grids.sharding import even_shards, unit_tokens
from fedsim.materials import Materials, worker_device
from fedsim.noise.tolerance import ROUNDING_TOLERANCE
from fedsim.plan import RoundPlan
from fedsim.tensors import Tensors, check_same_layout

_MESSAGE_TYPE = "train"
_AT_ONCE = 8  # sums that are added in one pass over memory, and are there at once
_PATIENCE = 120.0  # seconds in which a SuperNode, started with the run, has long connected
_INTERVAL = 0.2


def build_executor(
    config: Config, materials: Materials, plan: RoundPlan, grid: Grid, device: str
) -> Executor:
    """Return the executor of a plan's rounds over a grid.

    Args:
        config: of the run; its `executor` section says how the work is cut and where it is done.
        materials: of the config.
        plan: of the rounds; the test of each round that it needs is included.
        grid: any `flwr.serverapp.Grid`.
        device: of the server, in torch's spelling.
    """
    executor = GridExecutor(
        grid,
        ClientSpec(
            seed=config.seed,
            data_seed=materials.seed,
            text_digest=materials.text_digest,
            start_digest=materials.start_digest,
            # In one process both have the same network.
            frozen_digest=None if type(grid) is InProcessGrid else materials.frozen_digest,
            packages=packages_behind(plan.task, config.model),
            data=config.data,
            model=config.model,
            task=plan.task,
            engine=config.executor.engine,
            device=worker_device(config.executor, device),
            precision=config.executor.precision,
            checkpointing=config.executor.checkpointing,
            gpu_share=min(1.0, config.executor.gpus_per_worker or 1.0),
        ),
        config.executor.shard_size,
        unit_tokens(plan, materials),
    )
    return plan.around(executor)


class GridExecutor:
    """Sends shards to the grid's nodes in turn and folds the replies in shard order.

    A partial cohort is never released: a missing, repeated or unasked-for shard, a reply with
    another number of units than its shard has, and a sum that no clipped units have (longer than
    the bound allows, NaN or infinite) fail the round.

    Args:
        grid: any `flwr.serverapp.Grid`.
        spec: what the clients must know.
        shard_size: units a message; 0 cuts the cohort by work: a shard a node, of about as many
            tokens each, so that each node sends one sum.
        tokens: (num_keys,) what a unit brings, by its key; None where units are alike.
    """

    def __init__(
        self,
        grid: Grid,
        spec: ClientSpec,
        shard_size: int = 0,
        tokens: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._grid = grid
        self.spec = spec.model_dump_json()
        self._shard_size = shard_size
        self._tokens = tokens

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        """Return the sum over the cohort; of an empty cohort it is zero and sends no message.

        Raises:
            RuntimeError: a shard failed; the message holds the worker's own error. Or no node is
                there, and none came when it was waited for.
        """
        nodes = wait_for_nodes(self._grid)
        pieces = self._cut(cohort, len(nodes))
        replies = self._replies(parameters, pieces, clip, nodes, round)
        at_once = min(len(nodes), _AT_ONCE)
        total: WeightedSum | None = None  # made with the first replies: it is large
        waiting: dict[int, ShardReply] = {}
        ready: list[ShardReply] = []
        following = 0  # the shard after those that are ready
        for reply in replies:
            if reply.shard in waiting or not following <= reply.shard < len(pieces):
                raise RuntimeError(f"round {round}: shard {reply.shard} came twice or unasked")
            _check(reply, parameters, len(pieces[reply.shard]), round)
            waiting[reply.shard] = reply
            while following in waiting:  # in shard order: the bits do not depend on timing
                ready.append(waiting.pop(following))
                following += 1
            if len(ready) >= at_once or following == len(pieces):
                total = _fold(total or WeightedSum.zero(parameters), ready, clip, round)
                ready = []
        if following != len(pieces):
            raise RuntimeError(f"round {round}: {len(pieces) - following} shards got no reply")
        return total or WeightedSum.zero(parameters)

    def _cut(self, cohort: Keys, num_nodes: int) -> list[Keys]:
        if self._shard_size:
            return list(shards(cohort, self._shard_size))
        alike = np.ones(int(cohort.max(initial=0)) + 1, dtype=np.int64)
        return even_shards(cohort, alike if self._tokens is None else self._tokens, num_nodes)

    def _replies(
        self,
        parameters: Tensors,
        pieces: list[Keys],
        clip: Clip,
        nodes: list[int],
        round: int,
    ) -> Iterator[ShardReply]:
        record, clip_json = to_record(parameters), clip.model_dump_json()
        requests = [  # a list: Flower's grid of a SuperLink goes through the messages twice
            Message(
                ShardRequest(self.spec, clip_json, round, number, keys, record).to_content(),
                dst_node_id=nodes[number % len(nodes)],
                message_type=_MESSAGE_TYPE,
                group_id=str(round),
            )
            for number, keys in enumerate(pieces)
        ]
        for message in self._grid.send_and_receive(requests):
            if message.has_error():
                raise RuntimeError(f"round {round}: a worker failed: {message.error.reason}")
            try:
                reply = ShardReply.from_content(message.content)
            except ValueError as error:
                raise RuntimeError(f"round {round}: a reply that cannot be used: {error}") from None
            yield reply


def _check(reply: ShardReply, layout: Tensors, num_units: int, round: int) -> None:
    try:
        check_same_layout(layout, reply.total.values)
    except ValueError as error:
        raise RuntimeError(f"round {round}: shard {reply.shard}: {error}") from None
    if reply.total.num_units != num_units:
        raise RuntimeError(
            f"round {round}: shard {reply.shard} counts {reply.total.num_units} units, "
            f"was sent {num_units}"
        )
    if not 0 <= reply.total.num_unclipped <= num_units:
        raise RuntimeError(
            f"round {round}: shard {reply.shard} counts {reply.total.num_unclipped} units within "
            f"the clip, was sent {num_units}"
        )
    if reply.total.num_non_finite > num_units:
        raise RuntimeError(
            f"round {round}: shard {reply.shard} counts {reply.total.num_non_finite} units that "
            f"are not finite, was sent {num_units}"
        )


def _fold(total: WeightedSum, replies: list[ShardReply], clip: Clip, round: int) -> WeightedSum:
    """Return total + replies, written into `total`, once each is as long as its units may make it.

    The norms are found while adding, in the same pass over memory.
    """
    total, norms = total.absorb_([reply.total for reply in replies])
    for reply, length in zip(replies, norms, strict=True):
        weight, num_units = reply.total.weight, reply.total.num_units
        most = num_units * (1.0 + ROUNDING_TOLERANCE)
        # Also false for NaN, and for infinities where nothing is clipped.
        if not (0.0 <= weight <= most and length < math.inf):
            raise RuntimeError(
                f"round {round}: shard {reply.shard} has weight {weight} and norm {length}, was "
                f"sent {num_units} units"
            )
        if length > clip.bound * most:
            raise RuntimeError(
                f"round {round}: shard {reply.shard} has norm {length}, over {num_units} times the "
                f"clip's bound {clip.bound}"
            )
    return total


def wait_for_nodes(grid: Grid, count: int = 1, patience: float = _PATIENCE) -> list[int]:
    """Return the ids of all nodes that are connected, sorted, once there are `count` or more.

    Grids in the server's own process have theirs from the start; simulated nodes are registered
    while the ServerApp runs already, and SuperNodes come from other machines.

    Raises:
        RuntimeError: there were fewer for `patience` seconds.
    """
    end = time.monotonic() + patience
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= count:
            return nodes
        if time.monotonic() >= end:
            raise RuntimeError(
                f"{len(nodes)} of {count} nodes connected within {patience:g} s; start the "
                "SuperNodes that are missing, or ask for fewer workers"
            )
        time.sleep(_INTERVAL)
