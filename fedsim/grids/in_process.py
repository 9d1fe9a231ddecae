"""The default grid: calls the ClientApp in this process, hands arrays over without a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedsim.grids.identity import OneRunGrid, answer

_WORKER_NODE = 2


class InProcessGrid(OneRunGrid):
    """One node, this process; `push_messages` computes, `pull_messages` hands the replies out."""

    def __init__(self, client_app: ClientApp) -> None:
        super().__init__()
        self._app = client_app
        self._replies: dict[str, Message] = {}

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
        reply = answer(self._app, message)
        key: str = message.metadata.message_id
        self._replies[key] = reply
        return key
