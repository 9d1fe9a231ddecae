"""The default grid: calls the ClientApp in this process, and passes arrays without a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedsim.grids.identity import OneRunGrid, answer

_WORKER_NODE = 2


class InProcessGrid(OneRunGrid):
    """One node, this process. An error in the ClientApp is raised here."""

    def __init__(self, client_app: ClientApp) -> None:
        super().__init__()
        self._app = client_app

    def get_node_ids(self) -> Iterable[int]:
        """Return the id of the only node."""
        return [_WORKER_NODE]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield one reply at a time, so that only one sum is in memory for any cohort."""
        for message in messages:
            yield answer(self._app, message)
