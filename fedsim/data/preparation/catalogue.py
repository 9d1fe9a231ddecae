"""The steps by their names."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from fedsim.data.preparation.aliases import MergeUsers
from fedsim.data.preparation.emails import DropForwards, StripQuotes
from fedsim.data.preparation.exact_duplicates import ExactDuplicates
from fedsim.data.preparation.mailbox_owner import MailboxOwner
from fedsim.data.preparation.near_duplicates import NearDuplicates, NearDuplicatesOf
from fedsim.data.preparation.receivers import ExpandReceivers
from fedsim.data.preparation.repeated_ngrams import RepeatedNgrams
from fedsim.data.preparation.step import Step
from fedsim.data.preparation.text_length import TextLength
from fedsim.data.preparation.times import SortByTime, TimeWindow
from fedsim.data.preparation.urls import DropUrls, StripUrls
from fedsim.data.preparation.user_names import DropUsers, UserName
from fedsim.data.preparation.user_sizes import MaxExamples, MinExamples, UserWords

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
