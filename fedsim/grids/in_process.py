"""The default grid: calls the ClientApp in this process, hands arrays over without a copy.

All touching of Flower's inside is in this module: the task identity that a `Message` asks for,
and the message id that a grid gives (Flower 1.41; see the test of this module).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_RUN_ID = 1
_SERVER_NODE = 1
_WORKER_NODE = 2


class InProcessGrid(Grid):
    """One node, this process; `push_messages` computes, `pull_messages` hands the replies out."""

    def __init__(self, client_app: ClientApp) -> None:
        self._app = client_app
        self._replies: dict[str, Message] = {}
        self._run = Run.create_empty(_RUN_ID)
        TaskIdentity.task_id, TaskIdentity.run_id = 1, _RUN_ID
        TaskIdentity.node_id = _SERVER_NODE

    def set_run(self, run: Run) -> None:
        """Remember the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message; `Message(...)` itself is the current way."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the one node there is."""
        return [_WORKER_NODE]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Compute each message's reply at once; an error in the ClientApp is raised here."""
        return [self._answer(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand out the replies, each once; an unknown id is passed over."""
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
    ) -> Iterator[Message]:
        """Yield reply after reply, so that one sum is held at a time whatever the cohort."""
        for message in messages:
            yield self._replies.pop(self._answer(message))

    def _answer(self, message: Message) -> str:
        key = str(uuid4())
        message.metadata.__dict__["_message_id"] = key
        context = Context(
            run_id=_RUN_ID,
            node_id=message.metadata.dst_node_id,
            node_config={},
            state=RecordDict(),
            run_config={},
        )
        self._replies[key] = self._app(message=message, context=context)
        return key
