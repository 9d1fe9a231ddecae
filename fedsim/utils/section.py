"""A frozen section of the config that refuses unknown keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
MOST = 10**12
"""Upper limit of all counts: larger than any real count, and exact in float64."""

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
PositiveFloat32 = Annotated[float, Field(gt=0.0, le=3e38, allow_inf_nan=False)]
"""A factor of float32 tensors; float32's maximum is 3.4e38."""


class Section(BaseModel):
    """Base class of all sections of the config, and of a preparation's steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")
