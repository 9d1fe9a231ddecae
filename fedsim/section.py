"""A frozen part of the config in which an unknown key is an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """What every part of the config is made of, the steps of a preparation too."""

    model_config = ConfigDict(frozen=True, extra="forbid")
