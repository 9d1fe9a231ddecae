"""A step that makes one record of each receiver of an e-mail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from email.utils import getaddresses
from typing import Annotated, Any, Literal

from pydantic import Field

from fedsim.data.preparation.step import Step
from fedsim.data.records import Record


class ExpandReceivers(Step):
    """Repeat an e-mail for every receiver, as Chua et al. 2024, App. B.1, do.

    Receivers stand in `columns` as lists or as comma-separated addresses; one who is named twice
    counts once, and an e-mail without any is kept once. Records afterwards have the one receiver
    in the first of the columns and nothing in the others. All of them are the sender's. Streams.
    """

    step: Literal["expand-receivers"] = "expand-receivers"
    columns: Annotated[tuple[str, ...], Field(min_length=1)] = ("to", "cc", "bcc")

    def needs_columns(self) -> tuple[str, ...]:
        """Return the receivers' columns."""
        return self.columns

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield a record for each receiver; nothing is dropped."""
        first, *others = self.columns
        for record in records:
            named = [address for name in self.columns for address in _listed(record.columns[name])]
            for receiver in dict.fromkeys(named) or (None,):
                receivers = {first: receiver, **dict.fromkeys(others)}
                yield record._replace(columns={**record.columns, **receivers})


def _listed(value: Any) -> list[str]:  # noqa: ANN401  (a cell of the source)
    parts = (
        [str(part) for part in value] if isinstance(value, (list, tuple)) else [str(value or "")]
    )
    return [address.lower() for _, address in getaddresses(parts) if address]
