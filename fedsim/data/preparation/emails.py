"""Steps on what an e-mail repeats of others: forwarded messages, and quotes in replies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from fedsim.data.preparation.step import Step
from fedsim.data.records import Record

_FORWARDING_SUBJECT = re.compile(r"\s*(re\s*:\s*)*fwd?\s*:", re.IGNORECASE)
_FORWARDED = re.compile(
    r"^[ \t>]*(-{2,}[ \t]*forwarded\b.*|begin forwarded message\s*:.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_QUOTE_BEGINS = re.compile(
    r"^[ \t]*(-{2,}[ \t]*original message\b.*|on\b[^\n]*\n?[^\n]*\bwrote:[ \t]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_QUOTED_LINE = re.compile(r"^[ \t]*>.*(\n|\Z)", re.MULTILINE)


class DropForwards(Step):
    """Drop e-mails that pass on another's: their text is somebody else's (Chua et al., B.1).

    Known by a subject that begins with FW: or FWD:, if `subject_column` is given, or by the line
    that Lotus Notes, Outlook, Gmail or Apple Mail puts over the message passed on. Streams.
    """

    step: Literal["drop-forwards"] = "drop-forwards"
    subject_column: str | None = None

    def needs_columns(self) -> tuple[str, ...]:
        """Return the subject's column, if there is one."""
        return () if self.subject_column is None else (self.subject_column,)

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the e-mails that forward nothing."""
        for record in records:
            subject = record.columns.get(self.subject_column or "") or ""
            if _FORWARDING_SUBJECT.match(str(subject)) or _FORWARDED.search(record.text):
                dropped[self.reason("forwarded e-mail")] += 1
            else:
                yield record


class StripQuotes(Step):
    """Cut from an e-mail what it quotes of the one it answers, and drop it if nothing remains.

    Everything from a line such as "-----Original Message-----" or "On … wrote:" on, and every
    line that begins with ">". Streams.
    """

    step: Literal["strip-quotes"] = "strip-quotes"

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield each e-mail's own words."""
        for record in records:
            own = _QUOTE_BEGINS.split(record.text, maxsplit=1)[0]
            own = _QUOTED_LINE.sub("", own)
            if own == record.text:
                yield record
            elif own.strip():
                yield record._replace(text=own.rstrip())
            else:
                dropped[self.reason("nothing but quotes")] += 1
