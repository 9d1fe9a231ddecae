"""Project time and cost of large runs from measured constants.

`python -m fedsim.experiments.projection docs/benchmarks/{gpu,grids,server}.json` prints the docs
page's table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Size of a run.

    Attributes:
        parameters: number of parameters of the model in forward and backward.
        trainable: number of trained parameters; these are sent and get noise.
        cohort_size: expected number of users per round.
        group_size: sequences per user.
        sequence_length: tokens per sequence.
        rounds: number of rounds.
        gpus: number of GPUs, with one worker each.
        collective: whether workers exchange sums and step their shares, by NCCL.
    """

    parameters: float
    trainable: float
    cohort_size: int
    group_size: int
    sequence_length: int
    rounds: int
    gpus: int
    collective: bool = False

    @property
    def operations(self) -> float:
        """Floating-point operations of a round, without attention's own products.

        Each parameter and token takes 2 forward and 4 backward. If only adapters are trained,
        backward forms no gradients of frozen parameters and takes 2.
        """
        tokens = self.cohort_size * self.group_size * self.sequence_length
        return (6.0 if self.trainable == self.parameters else 4.0) * self.parameters * tokens


@dataclass(frozen=True)
class Constants:
    """Constants measured by `fedsim bench` and the GPU benchmark.

    Attributes:
        all_parameters: operations per second of a GPU for clipped gradients of all parameters.
        adapters: operations per second of a GPU for clipped gradients of adapters alone.
        transfer: seconds per parameter: out as float32, a sum back as float32, on Ray, of two
            workers at once.
        fold: seconds per parameter and worker, for adding a worker's sum on the server.
        message: further seconds per worker.
        server: seconds per parameter for estimate, noise and step.
        coins: further seconds per round for a population of 342,477 users.
    """

    all_parameters: float
    adapters: float
    transfer: float
    fold: float
    message: float
    server: float
    coins: float

    @classmethod
    def measured(cls, rows: Sequence[Mapping[str, Any]]) -> Constants:
        """Read the constants from rows of `fedsim bench grids server --json` and of the GPU."""
        seconds = {(row["case"], row.get("engine")): float(row["seconds"] or 0.0) for row in rows}
        small, large = (seconds[f"round/{size}", "ray"] for size in ("1M", "10M"))
        slope = (large - small) / 9e6
        details = {row["case"]: row.get("details", {}) for row in rows}
        server = sum(details[part]["nanoseconds_per_parameter"] for part in SERVER_PARTS) / 1e9
        fold = details[FOLD]["nanoseconds_per_parameter"] / SUMS / 1e9
        whole, adapters = (
            next(
                float(row["details"]["teraflops_per_second"]) * 1e12
                for row in rows
                if (row["case"], row.get("engine")) == (case, "auto")
            )
            for case in GPU_CASES
        )
        return cls(
            all_parameters=whole,
            adapters=adapters,
            transfer=max(0.0, slope - WORKERS_MEASURED * fold),
            fold=fold,
            message=max(0.0, small - 1e6 * slope) / WORKERS_MEASURED,
            server=server,
            coins=max(0.0, seconds["population/342477", "ray"] - small - 1e6 * server),
        )


# Users with 16 sequences of 128 tokens, in bfloat16.
GPU_CASES = tuple(
    f"{model}, 2,048 tokens a user" for model in ("350 M, all parameters", "GPT-2 small, adapters")
)
WORKERS_MEASURED = 2  # of `round/*`
SERVER_PARTS = tuple(
    f"gpt2-medium, 350M: {part}"
    for part in ("estimate and noise, secure", "Adam's step", "is finite")
)
SUMS = 4  # of `FOLD`
FOLD = f"gpt2-medium, 350M: sums of {SUMS} workers"
PRICE = 4.0  # assumed dollars per GPU hour
EXCHANGE = 450e9  # bytes a second that a H200 sends by NVLink: its data sheet
STORE = 1e9  # bytes a second that a worker copies into Ray's store: a guess


@dataclass(frozen=True)
class Projection:
    """Seconds of a round by part; hours and dollars of all rounds."""

    gradients: float
    transfer: float
    server: float
    hours: float
    cost: float


def project(setting: Setting, constants: Constants, price: float = PRICE) -> Projection:
    """Return the projection with one sum per worker; the parts of a round do not overlap.

    With collectives, each worker is assumed to have the cores of the measured server.
    """
    whole = setting.trainable == setting.parameters
    rate = constants.all_parameters if whole else constants.adapters
    gradients = setting.operations / (setting.gpus * rate)
    each = constants.message + constants.fold * setting.trainable
    transfer = constants.transfer * setting.trainable + setting.gpus * each
    moved = setting.trainable
    if setting.collective:
        moved /= setting.gpus  # of each worker
        sent = 2 * 4 * moved * (setting.gpus - 1)
        transfer = setting.gpus * constants.message + sent / EXCHANGE + 3 * 4 * moved / STORE
    server = constants.coins + constants.server * moved
    hours = setting.rounds * (gradients + transfer + server) / 3600.0
    return Projection(gradients, transfer, server, hours, hours * setting.gpus * price)


_FULL = Setting(350e6, 350e6, 4096, 16, 128, 10_000, 8)
SETTINGS: dict[str, Setting] = {
    "350 M, all parameters": _FULL,
    "the same, by collectives": replace(_FULL, collective=True),
    "350 M, LoRA (1 % of them)": Setting(350e6, 3.5e6, 4096, 16, 128, 10_000, 8),
    "LoRA, cohort of 512": Setting(350e6, 3.5e6, 512, 16, 128, 10_000, 8),
}


def table(constants: Constants) -> str:
    """Return the Markdown table."""
    lines = [
        "| setting | gradients | transfer | server | a round | all rounds | at $4 a GPU hour |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, setting in SETTINGS.items():
        made = project(setting, constants)
        total = made.gradients + made.transfer + made.server
        lines.append(
            f"| {name} | {made.gradients:.2g} s | {made.transfer:.2g} s | {made.server:.2g} s "
            f"| {total:.3g} s | {made.hours:,.0f} h | ${made.cost:,.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    answers = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    measured = [row for answer in answers for row in answer["rows"]]
    sys.stdout.write(table(Constants.measured(measured)) + "\n")
