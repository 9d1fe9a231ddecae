"""When a run has diverged: parameters or a held-out loss that are no finite numbers any more.

Training goes on from numbers alone, so nothing that comes after can be better. The run ends with
the round named; its folder keeps what was written while the numbers were finite. Parameters that
noise has made large are finite, and no divergence.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from fedsim.errors import DivergedError
from fedsim.evaluation import Evaluation
from fedsim.materials import Materials
from fedsim.report.schema import RoundMetrics
from fedsim.scoring import owners
from fedsim.state import ServerState
from fedsim.tensors import all_finite

NOT_PAID_FOR = (
    "That a run diverged shows in its parameters, which are released, or in its held-out loss: "
    "then private text decided, without noise, that there is no model, and no ε pays for that."
)
_WHAT_WOULD_DO = "try a smaller server.learning_rate, or another starting model"


def check_parameters(state: ServerState) -> None:
    """Raise `DivergedError` if a parameter is NaN or infinite after a round."""
    if not all_finite(state.parameters):
        broken = [name for name, value in state.parameters.items() if not value.isfinite().all()]
        raise DivergedError(
            f"round {state.round}: {len(broken)} of {len(state.parameters)} parameters are not "
            f"finite, {broken[0]} among them; {_WHAT_WOULD_DO}"
        )


def check_held_out(line: RoundMetrics, materials: Materials) -> None:
    """Raise `DivergedError` if there is held-out text and its loss is NaN or infinite.

    That is another look at private text, as every score on it: the report says `NOT_PAID_FOR`.
    """
    if line.held_out is None or not len(materials.split.held_out_examples):
        return
    if not math.isfinite(line.held_out.loss):
        raise DivergedError(
            f"round {line.round}: the held-out loss is {line.held_out.loss} (computed on private "
            f"text: no ε pays for ending here); {_WHAT_WOULD_DO}"
        )


def without_scores(materials: Materials, model: Path) -> Evaluation:
    """Return the final utility of a diverged run, which is none, and drop what `model/` holds.

    A half-way model there would be taken for the run's outcome; `checkpoints/` has the last
    finite ones.
    """
    shutil.rmtree(model, ignore_errors=True)
    examples = materials.split.held_out_examples
    predicted = (materials.store.lengths(examples) - 1).clip(min=0)
    return Evaluation(
        loss=math.nan,
        perplexity=math.nan,
        accuracy_top1=math.nan,
        tokens=int(predicted.sum()),
        user_loss=math.nan,
        user_accuracy_top1=math.nan,
        users=len(set(owners(materials.store, examples)[predicted > 0].tolist())),
    )
