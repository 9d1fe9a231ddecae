"""What our grids must know of Flower's inside (Flower 1.41; kept in this one module)."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1
SERVER_NODE = 1


def assume_identity() -> None:
    """Set the task identity that a `Message` asks for before the first is made in a process."""
    TaskIdentity.task_id, TaskIdentity.run_id = 1, RUN_ID
    TaskIdentity.node_id = SERVER_NODE


class OneRunGrid(Grid):
    """What grids in the server's own process have in common: one run, and messages by hand."""

    def __init__(self) -> None:
        self._run = Run.create_empty(RUN_ID)
        self._pushed: dict[str, Message] = {}
        assume_identity()

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

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep messages until `pull_messages` asks for their replies."""
        keys = []
        for message in messages:
            keys.append(_identified(message))
            self._pushed[keys[-1]] = message
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Compute and hand out the replies, each once; an unknown id is passed over."""
        known = [key for key in dict.fromkeys(message_ids) if key in self._pushed]
        return list(self.send_and_receive([self._pushed.pop(key) for key in known]))


def _identified(message: Message) -> str:
    key = str(uuid4())
    message.metadata.__dict__["_message_id"] = key
    return key


def answer(app: ClientApp, message: Message) -> Message:
    """Give a message the id that a grid gives, and let a ClientApp answer it."""
    if not message.metadata.message_id:
        _identified(message)
    context = Context(
        run_id=RUN_ID,
        node_id=message.metadata.dst_node_id,
        node_config={},
        state=RecordDict(),
        run_config={},
    )
    return app(message=message, context=context)
