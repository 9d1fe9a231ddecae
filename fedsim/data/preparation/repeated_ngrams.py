"""A step that drops texts which repeat themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from fedsim.data.preparation.step import Step
from fedsim.data.records import Record


class RepeatedNgrams(Step):
    """Drop a text in which the same `words` words in a row stand twice.

    Chua et al. 2024, App. B.1, keep the e-mails in which no 20-gram occurs more than once. Words
    are what white space separates; a text of at most `words` of them repeats nothing. Streams.
    """

    step: Literal["repeated-ngrams"] = "repeated-ngrams"
    words: Annotated[int, Field(ge=1)] = 20

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the texts in which every n-gram is unique."""
        for record in records:
            words = record.text.split()
            count = max(0, len(words) - self.words + 1)
            ngrams = {tuple(words[start : start + self.words]) for start in range(count)}
            if len(ngrams) < count:
                dropped[self.reason(f"a {self.words}-gram stands twice")] += 1
            else:
                yield record
