"""The steps by their names."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from fedsim.data.preparation.duplicates import ExactDuplicates, NearDuplicates, NearDuplicatesOf
from fedsim.data.preparation.emails import DropForwards, ExpandReceivers, MailboxOwner, StripQuotes
from fedsim.data.preparation.step import Step
from fedsim.data.preparation.texts import RepeatedNgrams, TextLength
from fedsim.data.preparation.times import SortByTime, TimeWindow
from fedsim.data.preparation.urls import DropUrls, StripUrls
from fedsim.data.preparation.users import (
    DropUsers,
    MaxExamples,
    MergeUsers,
    MinExamples,
    UserName,
    UserWords,
)

AnyStep = Annotated[
    DropForwards
    | DropUrls
    | DropUsers
    | ExactDuplicates
    | ExpandReceivers
    | MailboxOwner
    | MaxExamples
    | MergeUsers
    | MinExamples
    | NearDuplicates
    | NearDuplicatesOf
    | RepeatedNgrams
    | SortByTime
    | StripQuotes
    | StripUrls
    | TextLength
    | TimeWindow
    | UserName
    | UserWords,
    Field(discriminator="step"),
]

STEPS: dict[str, type[Step]] = {
    kind.model_fields["step"].default: kind for kind in get_args(get_args(AnyStep)[0])
}
