"""The server's state: all values that a round changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedsim.accounting.ledger import Ledger
from fedsim.tensors import Tensors


@dataclass(frozen=True, eq=False)
class ServerState:
    """Input and output of a round.

    Attributes:
        round: number of completed rounds; also the address of the next round's random streams.
        parameters: the trainable parameters, float32.
        optimizer_state: flat, "parameter/key" → tensor; empty at the start.
        ledger: every release so far, with its cost.
        clip_scale: factor on the plan's clip in the next round.
        average: average of the parameters; empty without averaging or before averaging starts.
    """

    round: int
    parameters: Tensors
    optimizer_state: Tensors = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    clip_scale: float = 1.0
    average: Tensors = field(default_factory=dict)

    @property
    def model(self) -> Tensors:
        """The parameters to evaluate, save and publish: the average if there is one."""
        return self.average or self.parameters


@dataclass(frozen=True)
class RoundRecord:
    """Metrics of one round, for the log.

    The last three are functions of noisy releases that the ledger was charged for. The others are
    computed from private text and are not protected.

    Attributes:
        num_units: size of the drawn cohort.
        num_gradients: number of per-example gradients computed.
        num_non_finite: units replaced by zero because of a NaN or an infinity.
        num_clipped: units that the clip made smaller.
        train_loss: mean over the drawn units of their mean loss; None for an empty cohort.
        estimate_norm: L2 norm of the estimate before noise.
        release_over_noise: L2 norm of the release over the root-mean-square norm of its noise;
            about 1 for pure noise, None without noise.
        clip_norm: norm up to which updates pass unclipped; None if it is the same in all rounds.
        released_share: noisy share of units within `clip_norm`; None if it is not released.
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
        """Return the fields under their names in `metrics.jsonl`."""
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
