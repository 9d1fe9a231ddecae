"""Steps on a text's length and on texts that repeat themselves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedsim.data.preparation.step import Step
from fedsim.data.sources.records import Record


class TextLength(Step):
    """Drop the texts that are shorter than `minimum` or longer than `maximum`. Streams.

    Words are what white space separates.
    """

    step: Literal["text-length"] = "text-length"
    unit: Literal["characters", "words"] = "characters"
    minimum: Annotated[int, Field(ge=1)] | None = None
    maximum: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _a_range(self) -> TextLength:
        if self.minimum is None and self.maximum is None:
            raise ValueError("give minimum, maximum or both")
        if self.minimum and self.maximum and self.minimum > self.maximum:
            raise ValueError(f"minimum = {self.minimum} is above maximum = {self.maximum}")
        return self

    def one(self, record: Record) -> Record | str:
        """Keep a text of a length in the range, both ends included."""
        size = len(record.said) if self.unit == "characters" else len(record.said.split())
        if self.minimum is not None and size < self.minimum:
            return f"fewer than {self.minimum} {self.unit}"
        if self.maximum is not None and size > self.maximum:
            return f"more than {self.maximum} {self.unit}"
        return record


class RepeatedNgrams(Step):
    """Drop a text in which the same `words` words in a row stand twice.

    Chua et al. 2024, App. B.1, keep the e-mails in which no 20-gram occurs more than once. Words
    are what white space separates; a text of at most `words` of them repeats nothing. Streams.
    """

    step: Literal["repeated-ngrams"] = "repeated-ngrams"
    words: Annotated[int, Field(ge=1)] = 20

    def one(self, record: Record) -> Record | str:
        """Keep a text in which every n-gram is unique."""
        words = record.said.split()
        count = max(0, len(words) - self.words + 1)
        ngrams = {tuple(words[start : start + self.words]) for start in range(count)}
        return f"a {self.words}-gram stands twice" if len(ngrams) < count else record
