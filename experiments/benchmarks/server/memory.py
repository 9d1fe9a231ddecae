"""Peak memory of the server by cohort size (replies are added on arrival), and of whole runs.

`python -m fedsim.experiments.benchmarks.server.memory 5000` runs one case and prints the bytes.
Each case needs its own process, as a peak never decreases. Whole runs are in `run_memory.py`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from fedsim.config import ModelConfig
from fedsim.data.config import DataConfig
from fedsim.experiments.benchmarks.grids.population import plan_of
from fedsim.experiments.benchmarks.server.bench_server import MODELS
from fedsim.experiments.benchmarks.server.run_memory import measured, run_rows, write_words
from fedsim.experiments.benchmarks.timing import Row
from fedsim.grids.executor import GridExecutor
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from fedsim.grids.records import ClientSpec
from fedsim.materials import load_materials
from fedsim.round import run_round
from fedsim.state import ServerState
from fedsim.utils.machine import peak_memory_bytes

_COHORTS = (50, 5_000)
_USERS = 10_000
_SHARD_SIZE = 10  # small, so the number of messages grows with the users
_ROUNDS = 2


def run() -> list[Row]:
    """Return the server's peak for each cohort (`ratio` to the smallest's), and those of runs."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        source = write_words(Path(folder) / "texts.jsonl", _USERS, 8)
        for cohort in _COHORTS:
            seconds, peak = measured(__name__, source, cohort)
            first = rows[0]["details"]["peak_bytes"] if rows else peak
            rows.append(
                Row(
                    benchmark="memory",
                    case=f"cohort/{cohort}",
                    engine="ray",
                    seconds=seconds,
                    ratio=peak / first,
                    details={"peak_bytes": peak, "rounds": _ROUNDS, "shard_size": _SHARD_SIZE},
                )
            )
    return rows + run_rows("smollm2", MODELS["SmolLM2-135M"])


def peak_of(source: str, cohort_size: int) -> int:
    """Return the peak resident bytes of this process, the server, after a few real rounds."""
    data = DataConfig(
        source=source,
        user_column="user",
        text_column="text",
        sequence_length=16,
        held_out_examples=0.0,
    )
    model = ModelConfig(pretraining_steps=0)
    materials = load_materials(0, data, model, "cpu")
    plan = plan_of(_USERS, cohort_size)
    spec = ClientSpec(seed=0, data=data, model=model, task=plan.task, engine="auto", device="cpu")
    state = ServerState(0, materials.model.initial_parameters())
    with RayGrid("default", Share(workers=2, cpus=1.0, gpus=0.0)) as grid:
        executor = GridExecutor(grid, spec, _SHARD_SIZE)
        for _ in range(_ROUNDS):
            state, _ = run_round(state, plan, executor)
        return peak_memory_bytes()


if __name__ == "__main__":
    sys.stdout.write(f"{peak_of(sys.argv[1], int(sys.argv[2]))}\n")
