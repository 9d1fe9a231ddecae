"""The default grid: calls the ClientApp in this process, hands arrays over without a copy."""

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
        """Return the one node there is."""
        return [_WORKER_NODE]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield reply after reply, so that one sum is held at a time whatever the cohort."""
        for message in messages:
            yield answer(self._app, message)
