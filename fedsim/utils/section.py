"""A frozen part of the config in which an unknown key is an error."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
MOST = 10**12
"""Of anything that is counted: far more than there is, and what all arithmetic holds exactly."""

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
PositiveFloat32 = Annotated[float, Field(gt=0.0, le=3e38, allow_inf_nan=False)]
"""Of a factor of float32 tensors, or of another factor: float32 ends at 3.4e38."""


class Section(BaseModel):
    """What every part of the config is made of, the steps of a preparation too."""

    model_config = ConfigDict(frozen=True, extra="forbid")
