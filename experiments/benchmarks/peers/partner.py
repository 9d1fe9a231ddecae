"""Client of a process in the peers' environment."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from fedsim.tensors import Tensors, l2_norm

TOLERANCE = 1e-4
"""Maximum relative L2 distance of two sums of the same work."""


class Partner:
    """A running peer; leaving the `with` block ends it."""

    def __init__(self, python: Path) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (an unread pipe fills up)
        self._process = subprocess.Popen(  # noqa: S603 (the interpreter that `install` made)
            [str(python), "-m", "theirs"],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Partner:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, **request: object) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            RuntimeError: the peer ended; the message has the end of its output.
        """
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        assert self._process.stdout is not None  # noqa: S101
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            line = ""
        else:
            line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"the peer ended at {request}: {self._errors.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def sum(self, path: Path) -> dict[str, torch.Tensor]:
        """Return the last clipped sum, through a file at `path`."""
        self.ask(do="sum", path=str(path))
        total: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
        return total


def distance(total: Tensors, reference: Tensors) -> float:
    """Return the relative L2 distance of a peer's sum from ours.

    Raises:
        RuntimeError: names or shapes differ, or the distance is above `TOLERANCE`. The peer did
            other work, so its time is meaningless.
    """
    shapes = {name: value.shape for name, value in total.items()}
    expected = {name: value.shape for name, value in reference.items()}
    if shapes != expected:
        wrong = sorted(set(shapes.items()) ^ set(expected.items()))
        raise RuntimeError(f"the peer's sum has other tensors than ours: {wrong}")
    difference = {name: total[name].double() - value.double() for name, value in reference.items()}
    relative = l2_norm(difference) / l2_norm({k: value.double() for k, value in reference.items()})
    if not relative <= TOLERANCE:  # also true for NaN
        raise RuntimeError(f"the peer's sum is {relative:.1e} away from ours, relative")
    return relative
