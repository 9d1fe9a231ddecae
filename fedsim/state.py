"""The server's state: everything that a round changes, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedsim.accounting.ledger import Ledger
from fedsim.tensors import Tensors


@dataclass(frozen=True, eq=False)
class ServerState:
    """What goes into a round and comes out of it.

    Attributes:
        round: rounds done so far; also the address of the next round's random streams.
        parameters: the trainable parameters, float32.
        optimizer_state: flat, "parameter/key" → tensor; empty at the start.
        ledger: every release so far, with its cost.
        clip_scale: what the plan's clip is multiplied by in the next round.
        average: of the parameters, where the server's optimizer has one that has begun; else empty.
    """

    round: int
    parameters: Tensors
    optimizer_state: Tensors = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    clip_scale: float = 1.0
    average: Tensors = field(default_factory=dict)

    @property
    def model(self) -> Tensors:
        """The parameters that are evaluated, saved and given away: the average, if there is one."""
        return self.average or self.parameters


@dataclass(frozen=True)
class RoundRecord:
    """What a round says for the log.

    All of it is computed on private text and not protected, save the last three: they are a
    function of noisy releases that the ledger was charged for.

    Attributes:
        num_units: the drawn cohort's size.
        num_gradients: per-example gradients computed.
        num_non_finite: units dropped to zero for a NaN or an infinity.
        num_clipped: units that the clip made smaller.
        train_loss: mean over the drawn units of their mean loss; None for an empty cohort.
        estimate_norm: L2 norm of the estimate before noise.
        release_over_noise: L2 norm of the release over that of its noise, which is public: 1 where
            there is noise alone; None without noise.
        clip_norm: the norm up to which updates passed unclipped; None where it never changes.
        released_share: the noisy share of units within it; None where none is released.
    """

    num_units: int
    num_gradients: int
    num_non_finite: int
    num_clipped: int
    train_loss: float | None
    estimate_norm: float
    release_over_noise: float | None = None
    clip_norm: float | None = None
    released_share: float | None = None

    def to_json(self) -> Mapping[str, float | int | None]:
        """Return the fields by the names that `metrics.jsonl` uses."""
        return {
            "units": self.num_units,
            "gradients": self.num_gradients,
            "non_finite": self.num_non_finite,
            "clipped": self.num_clipped,
            "train_loss": self.train_loss,
            "estimate_norm": self.estimate_norm,
            "release_over_noise": self.release_over_noise,
            "clip_norm": self.clip_norm,
            "released_share": self.released_share,
        }
