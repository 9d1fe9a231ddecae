"""The internals of Flower 1.41 that the grids need, in this module only."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1
SERVER_NODE = 1


def assume_identity() -> None:
    """Set the task identity that Flower requires before a process creates a `Message`."""
    TaskIdentity.task_id, TaskIdentity.run_id = 1, RUN_ID
    TaskIdentity.node_id = SERVER_NODE


class OneRunGrid(Grid):
    """Base of grids in the server's process: one run, and only `send_and_receive`."""

    def __init__(self) -> None:
        assume_identity()

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return Run.create_empty(RUN_ID)

    def _none(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401  (as Flower declares them)
        raise NotImplementedError("send messages by send_and_receive")

    set_run = create_message = push_messages = pull_messages = _none


def answer(app: ClientApp, message: Message) -> Message:
    """Set a message's id, as a grid does, and return the ClientApp's reply."""
    if not message.metadata.message_id:
        message.metadata.__dict__["_message_id"] = str(uuid4())
    context = Context(
        run_id=RUN_ID,
        node_id=message.metadata.dst_node_id,
        node_config={},
        state=RecordDict(),
        run_config={},
    )
    return app(message=message, context=context)
