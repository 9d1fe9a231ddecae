"""The config section of planted users: how many, of what size, and how much they have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsim.section import Section


class CanaryConfig(Section):
    """Canary users, Kandpal et al. 2023, D.2: see `fedsim.data.canaries`.

    `num_users` users are planted, half of them are trained on. Each has `num_examples` examples,
    held-out ones counted, all with the same `shared_tokens` tokens somewhere in them.
    """

    num_users: Annotated[int, Field(ge=2)]
    num_examples: Annotated[int, Field(ge=1)]
    shared_tokens: Annotated[int, Field(ge=1, le=100)]
