"""Valid reports of realistic size for the tests of `fedsim.report`."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedsim.report.schema import (
    Cost,
    DataSummary,
    HeldOut,
    ModelSummary,
    Privacy,
    RoundMetrics,
    RoundSummary,
    RunReport,
    Scores,
    Utility,
    save_report,
)
from fedsim.report.tables import Table
from fedsim.utils.files import write_atomically


def printed(table: Table, width: int) -> str:
    """Return a table as a terminal so wide shows it."""
    file = io.StringIO()
    Console(file=file, width=width).print(table.rich())
    return file.getvalue()


def scores(loss: float, accuracy: float = 0.3, tokens: int = 41_007) -> Scores:
    return Scores(loss=loss, perplexity=math.exp(loss), accuracy_top1=accuracy, tokens=tokens)


def privacy(**changes: object) -> Privacy:
    values: dict[str, object] = {
        "unit": "user",
        "relation": "add or remove one user",
        "epsilon": 7.9964,
        "delta": 1e-5,
        "noise_multiplier": 0.84,
        "sampling_probability": 0.0898,
        "sampler": "Poisson over users",
        "rounds": 100,
        "clip": {"kind": "flat", "l2_clip_norm": 1.0},
        "estimator": {"kind": "fixed", "denominator": 128.0},
        "noise_stddev": 0.0065625,
        "accountant": "pld",
        "noise": "seeded",
        "assumptions": ["The number of users, 1,426, is public."],
        "units_per_user": 1,
        "hypothetical": False,
        "statement": "Whoever sees the model learns almost the same with or without any one user.",
    }
    return Privacy.model_validate(values | changes)


def non_private(**changes: object) -> Privacy:
    values: dict[str, object] = {
        "epsilon": None,
        "delta": None,
        "noise_multiplier": None,
        "noise_stddev": None,
        "accountant": None,
        "noise": "none",
        "clip": {},
        "hypothetical": False,
        "assumptions": (),
        "statement": "Trained without clipping and without noise.",
    }
    return privacy(**(values | changes))


def report(
    title: str = "uls at ε = 8",
    name: str = "uls",
    promise: Privacy | None = None,
    initial: Scores | None = None,
    final: Scores | None = None,
    **changes: object,
) -> RunReport:
    values: dict[str, object] = {
        "name": name,
        "title": title,
        "created": "2026-03-14",
        "privacy": promise or privacy(),
        "utility": Utility(initial=initial or scores(3.3, 0.16), final=final or scores(2.4, 0.31)),
        "data": DataSummary(
            users=1426,
            examples=31_113,
            tokens=5_012_345,
            dropped={"empty text": 3, "beyond group_size": 4_512},
            source="shakespeare",
            held_out_examples=3_457,
            held_out_tokens=412_098,
        ),
        "model": ModelSummary(
            name="tiny-gpt",
            parameters=812_544,
            trainable_parameters=812_544,
            trainable_pattern="all",
            lora_rank=0,
            origin="pre-trained on public text",
        ),
        "cost": Cost(
            gradients=98_765,
            expected_gradients=102_400.0,
            seconds=212.5,
            peak_memory_bytes=1_234_567_890,
            rounds=100,
        ),
        "settings": {"server.optimizer": "adam", "server.learning_rate": 0.01},
        "rounds": RoundSummary(clipped_share=0.873, signal_over_noise=0.0404),
        "machine": {"cpu": "8 cores", "gpu": None},
        "versions": {"fedsim": "0.1.0", "torch": "2.13.0"},
    }
    return RunReport.model_validate(values | changes)


def metrics(rounds: int = 4, every: int = 2, *, private: bool = True) -> list[RoundMetrics]:
    """Return a start line and `rounds` rounds; the loss falls from 3.3, ε rises with the root."""
    lines = [RoundMetrics(round=0, held_out=_held_out(3.3))]
    for number in range(1, rounds + 1):
        evaluated = number % every == 0
        lines.append(
            RoundMetrics(
                round=number,
                units=128 + number * 37 % 23,
                gradients=900 + number,
                non_finite=int(number == 3),
                clipped=100 + number % 20,
                train_loss=2.3 + math.exp(-number / 30) + 0.05 * math.sin(number * 7),
                estimate_norm=0.4,
                release_over_noise=1.0 + number % 3 / 1000 if private else None,
                epsilon=8 * math.sqrt(number / rounds) if evaluated and private else None,
                held_out=_held_out(2.4 + 0.9 * math.exp(-number / 25)) if evaluated else None,
            )
        )
    return lines


def _held_out(loss: float) -> HeldOut:
    accuracy = 0.55 - loss / 10
    return HeldOut(
        loss=loss, perplexity=math.exp(loss), accuracy_top1=accuracy, unit_loss=loss + 0.1
    )


def write_run(folder: Path, run: RunReport, lines: Sequence[RoundMetrics]) -> Path:
    save_report(folder, run)
    write_atomically(
        folder / "metrics.jsonl", "".join(line.model_dump_json() + "\n" for line in lines)
    )
    return folder
