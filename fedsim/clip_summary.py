"""What a report says of the clip: its bound, and where and why it moved."""

from __future__ import annotations

from pydantic import JsonValue

from fedsim.adaptive_clip import AdaptiveClip
from fedsim.clipping import NormalisedClip
from fedsim.plan import RoundPlan
from fedsim.state import ServerState


def clip_facts(plan: RoundPlan, state: ServerState) -> dict[str, JsonValue]:
    """Return the first round's clip, and, where it moves, how, and where it is in `state`."""
    clip = plan.clip
    inner = clip.clip if isinstance(clip, NormalisedClip) else clip
    facts: dict[str, JsonValue] = {
        **inner.model_dump(mode="json"),
        "normalise": isinstance(clip, NormalisedClip),
        "bound": None if clip.kind == "none" else clip.bound,
    }
    if plan.clip_policy.constant:
        return facts
    return {
        **facts,
        **plan.clip_policy.describe(),
        "update_noise_multiplier": plan.update_noise_multiplier,
        "next_clip_norm": plan.at(state).clip.norm,
    }


def clip_sentences(plan: RoundPlan) -> tuple[str, ...]:
    """Return what a reader must know of a clip that is not every round's; () of one that is."""
    if plan.clip_policy.constant:
        return ()
    first = "The bound and the noise standard deviation named here are the first round's."
    if not isinstance(plan.clip_policy, AdaptiveClip):
        return (f"The clip followed a schedule that looks at no data. {first}",)
    return (
        "The clip followed a noisy count of the units within it, released every round and paid "
        f"for: noise multiplier {plan.update_noise_multiplier:.6g} on the estimate and the count's "
        f"noise cost together what {plan.noise_multiplier:.6g} costs alone. clip_norm and "
        f"released_share in the metrics follow from these releases. {first}",
    )
