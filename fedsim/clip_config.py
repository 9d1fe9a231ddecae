"""The config's section on clipping: how units are bounded, and what becomes of the bound."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedsim.section import Positive, Section


class ScheduleConfig(Section):
    """From the clip's norm to `final_l2_clip_norm` over `rounds`, then held; all rounds if None."""

    kind: Literal["linear", "exponential"]
    final_l2_clip_norm: Positive
    rounds: Annotated[int, Field(ge=1)] | None = None


class AdaptiveConfig(Section):
    """After a quantile of the updates' norms (Andrew et al. 2021): see `fedsim.adaptive_clip`.

    `count_noise_stddev` is σ_b, in units. Left out, a twentieth of the expected cohort, as the
    paper recommends, but twice the noise multiplier where that is more: then the count takes 3 %
    of the noise on the updates, not most of it.
    """

    quantile: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    learning_rate: Positive = 0.2
    count_noise_stddev: Positive | None = None


class ClipConfig(Section):
    """Flat: one bound. Per-layer: S/√m each, or `l2_clip_norms` layer by layer."""

    kind: Literal["flat", "per-layer"] = "flat"
    l2_clip_norm: Positive | None = None
    l2_clip_norms: dict[str, Positive] | None = None
    normalise: bool = False
    schedule: ScheduleConfig | None = None
    adaptive: AdaptiveConfig | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> ClipConfig:
        if (self.l2_clip_norm is None) == (self.l2_clip_norms is None):
            raise ValueError("give l2_clip_norm or, per layer, l2_clip_norms: one of the two")
        if self.kind == "flat" and self.l2_clip_norms is not None:
            raise ValueError('l2_clip_norms needs kind = "per-layer"')
        return self

    @model_validator(mode="after")
    def _one_policy(self) -> ClipConfig:
        if self.schedule is not None and self.adaptive is not None:
            raise ValueError("schedule and adaptive each say which clip comes next: give one")
        return self
