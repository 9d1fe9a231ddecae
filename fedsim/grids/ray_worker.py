"""A worker of the Ray grid: a long-lived process that answers one shard after the other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsim.grids.identity import answer, assume_identity
from fedsim.grids.ray_cluster import import_ray
from fedsim.registry import resolve
from fedsim.utils.machine import collect_garbage_rarely, keep_freed_memory


@dataclass(frozen=True)
class Envelope:
    """A message without its large arrays, which travel through the object store.

    Attributes:
        node: the node that the message is addressed to.
        kind: the message type.
        group: the message's group id.
        small: the small records, which are part of the envelope.
        names: names of the large records, which are sent separately.
        ids: the large records' ids in the object store; the shards of a round share them.
    """

    node: int
    kind: str
    group: str
    small: RecordDict
    names: tuple[str, ...]
    ids: tuple[str, ...]


class Worker:
    """Calls a ClientApp; caches of its module hold the model and the store.

    The first message imports the app's module and torch, so that a worker starts quickly.
    """

    def __init__(self, app_name: str) -> None:
        self._app_name = app_name
        self._app: ClientApp | None = None
        self._records: dict[str, ArrayRecord] = {}
        assume_identity()
        collect_garbage_rarely()
        keep_freed_memory()

    def ready(self) -> int:
        """Return the process id, as a sign that the process is running."""
        return os.getpid()

    def member(self, method: str, *arguments: Any) -> Any:  # noqa: ANN401  (any of them)
        """Call a method of this process's `Member`, as a worker of a group."""
        from fedsim.grids.member import this_member  # noqa: PLC0415  (torch)

        member, ray = this_member(), import_ray()
        member.fetch, member.host = ray.get, ray.util.get_node_ip_address()
        return getattr(member, method)(*arguments)

    def answer(self, envelope: Envelope, *large: ArrayRecord) -> RecordDict:
        """Return the content of the reply; exceptions of the ClientApp go to the server."""
        content = RecordDict()
        for name, record in envelope.small.items():
            content[name] = record
        # The same object gives the same record, so the app sees that it is already loaded.
        before = self._records
        self._records = {
            key: before.get(key, record) for key, record in zip(envelope.ids, large, strict=True)
        }
        for name, key in zip(envelope.names, envelope.ids, strict=True):
            content[name] = self._records[key]
        message = Message(
            content,
            dst_node_id=envelope.node,
            message_type=envelope.kind,
            group_id=envelope.group,
        )
        if self._app is None:  # once: finding an entry point takes longer than a small shard
            self._app = resolve("client_apps", self._app_name, "executor.grid")
        reply: RecordDict = answer(self._app, message).content
        return reply
