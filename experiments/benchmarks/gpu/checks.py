"""Checks on a device: engines against `loop`, privacy tests, a run that is killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.models.mixed_precision import in_precision
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import NoClip
from fedsim.config import Config, ModelConfig, Precision, parse_config
from fedsim.data.config import DataConfig
from fedsim.estimators import WeightedSum
from fedsim.experiments.benchmarks.timing import Row
from fedsim.materials import load_materials
from fedsim.runner.checkpoint import checkpoints_in
from fedsim.runner.launch import run
from fedsim.tensors import l2_norm

_MODELS = {
    "tiny-gpt, adapters": ModelConfig(pretraining_steps=0, lora_rank=2),  # for `quick`
    "tiny-gpt": ModelConfig(pretraining_steps=0),
    "mcmahan-lstm": ModelConfig(name_or_path="mcmahan-lstm", pretraining_steps=0),
}
_ENGINES = ("loop", "auto", "vmap", "materialised", "ghost")
_USERS, _GROUP_SIZE, _LENGTH = np.arange(8), 3, 24
# Minimum and maximum relative distance of a sum from the loop's sum in float32.
_APART: dict[Precision, tuple[float, float]] = {
    "float32": (0.0, 1e-5),
    "bfloat16": (1e-5, 0.02),  # as in tests/privacy/test_mixed_precision.py; less is not bfloat16
}

ROOT = Path(__file__).resolve().parents[3]
_ON_DEVICE = (  # they read FEDSIM_TEST_DEVICE
    "tests/privacy/test_engine_sensitivity.py",
    "tests/privacy/test_mixed_precision.py",
    "tests/privacy/test_released_noise.py",
    "tests/unit/grids/test_parameters_on_device.py",
    "tests/unit/models/test_several_devices.py",
)
_QUICK = f"{_ON_DEVICE[0]}::test_no_user_decides_that_everybody_is_computed_otherwise"
_PROCESSES = 8
_PATIENCE = 600.0  # seconds to wait for a process


def parity(device: str, quick: bool) -> Iterator[Row]:
    """Compare every engine's sum of unclipped gradients with the loop's in float32.

    Raises:
        RuntimeError: some are too far from it, or too near for bfloat16.
    """
    wrong = []
    for name, config in list(_MODELS.items())[: 1 if quick else None]:
        with TemporaryDirectory() as folder:
            data = small_data(Path(folder)) if quick else DataConfig()
            materials = load_materials(0, data, config, device)
        generator = torch.Generator().manual_seed(0)
        start = {  # half of the adapters are zero, and then the other half has zero gradients
            key: (value + 0.02 * torch.randn(value.shape, generator=generator)).to(device)
            for key, value in materials.model.initial_parameters().items()
        }

        def summed(engine: str, precision: Precision) -> WeightedSum:
            model = in_precision(materials.model, precision)  # noqa: B023
            task = AveragedGradient(replace(materials, model=model), group_size=_GROUP_SIZE)  # noqa: B023
            return choose_engine(engine, task, model)(task, start, _USERS, NoClip(), 0)  # noqa: B023

        expected = summed("loop", "float32")
        for precision, (least, most) in _APART.items():
            for engine in _ENGINES[precision == "float32" :]:
                if (engine, name) == ("vmap", "mcmahan-lstm"):  # torch cannot vectorise it
                    continue
                total = summed(engine, precision)
                apart = l2_norm(
                    {key: total.values[key] - value for key, value in expected.values.items()}
                ) / l2_norm(expected.values)
                of_loss = abs(total.loss - expected.loss) / expected.loss
                if not (least <= apart <= most and of_loss <= max(most / 2, 1e-5)):
                    wrong.append(f"{name}, {precision}, {engine}: {apart:.1e}, loss {of_loss:.1e}")
                details = {"relative_difference": apart, "at_least": least, "at_most": most}
                case = f"parity: {name}, {precision}"
                yield Row(benchmark="gpu", case=case, engine=engine, seconds=None, details=details)
    if wrong:
        raise RuntimeError(f"sums differ from the loop's: {'; '.join(wrong)}")


def device_tests(device: str, quick: bool) -> Iterator[Row]:
    """Run the privacy tests that read FEDSIM_TEST_DEVICE, one process per core.

    Raises:
        RuntimeError: a test failed, no test was found, or the tests took too long.
    """
    # Warnings are not errors here, as the machine's packages may warn about anything.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default"]
    command += [_QUICK] if quick else ["-n", str(min(_PROCESSES, os.cpu_count() or 1)), *_ON_DEVICE]
    started = time.perf_counter()
    done = subprocess.run(  # noqa: S603
        command,
        cwd=ROOT,
        # One process's threads that wait actively would slow down the other processes.
        env={**os.environ, "FEDSIM_TEST_DEVICE": device, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()
    details = {"result": said[-1] if said else f"exit status {done.returncode}"}
    seconds = time.perf_counter() - started
    case = f"tests: {_QUICK}" if quick else "tests"
    yield Row(benchmark="gpu", case=case, engine="pytest", seconds=seconds, details=details)
    if done.returncode:
        raise RuntimeError("\n".join(line for line in said if line.startswith(("E  ", "FAILED"))))


def resumed(device: str, quick: bool) -> Iterator[Row]:
    """Kill a run by SIGKILL, resume it, and compare its result with an undisturbed run's.

    Only adapters are trained: a GPU adds gradients of embedding tables by atomic operations, in a
    different order in each run.

    Raises:
        RuntimeError: the final parameters differ, or a run's exit status is not as expected.
    """
    started = time.perf_counter()
    with TemporaryDirectory() as name:
        folder = Path(name)
        whole, cut, path = folder / "whole", folder / "cut", folder / "run.toml"
        config = _small_run(folder, device)
        path.write_text(config.to_toml(), encoding="utf-8")
        process = _started(path, cut)
        try:
            end = time.monotonic() + _PATIENCE
            while not checkpoints_in(cut / "checkpoints") and process.poll() is None:
                if time.monotonic() > end:
                    raise RuntimeError(f"no checkpoint within {_PATIENCE:g} s")
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            _ended(process, cut, -signal.SIGKILL)
            kept = checkpoints_in(cut / "checkpoints")[-1].name
            run(config, cut, resume=True)
            run(config, whole)
        finally:
            process.kill()
            process.wait()
        weights = ("model/model.safetensors", "adapter/adapter_model.safetensors")
        if differing := [w for w in weights if (whole / w).read_bytes() != (cut / w).read_bytes()]:
            raise RuntimeError(f"resumed at {kept}: {', '.join(differing)} differ in their bits")
    details = {"resumed_at": kept, "result": "equal to the bit"}
    seconds = time.perf_counter() - started
    yield Row(benchmark="gpu", case="killed and resumed", seconds=seconds, details=details)


def small_data(folder: Path) -> DataConfig:
    """Write words of 24 users into `folder`, and return the config section that reads them."""
    draw = np.random.default_rng(0)
    rows = [
        {"user": user, "text": " ".join(draw.choice(["the", "king", "rides", "to", "war"], 20))}
        for user in range(24)
        for _ in range(6)
    ]
    (folder / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig(
        source=str(folder / "text.jsonl"),
        user_column="user",
        text_column="text",
        sequence_length=_LENGTH,
    )


def _small_run(folder: Path, device: str) -> Config:
    """Return the config of a short run, on words written into `folder`."""
    return parse_config(
        {
            "data": small_data(folder).model_dump(exclude_none=True),
            "model": {"pretraining_steps": 0, "lora_rank": 2},
            "strategy": {
                "rounds": 20,
                "cohort_size": 8,
                "group_size": _GROUP_SIZE,
                "clip": {"kind": "flat", "l2_clip_norm": 0.1},
            },
            "privacy": {"noise_multiplier": 1.0, "delta": 1e-3, "noise": "seeded"},
            "executor": {"gpus_per_worker": 0.0 if device == "cpu" else 1.0},
            "training": {"evaluate_every": 20, "checkpoint_every": 2},
        }
    )


def _started(config: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedsim.cli.main", "run", str(config), "--out", str(out)]
    # The same number of threads as here: it determines the rounding of sums on a CPU.
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=env)  # noqa: S603


def _ended(process: subprocess.Popen[bytes], out: Path, status: int) -> None:
    """Wait for the end of a run, and raise `RuntimeError` unless its exit status is `status`."""
    if process.wait(_PATIENCE) != status:
        said = out.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(
            f"a run ended with exit status {process.returncode}, not {status}: {said}"
        )
