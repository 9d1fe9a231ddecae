"""The tour, as it stands in the notebook, with fewer steps, rounds and seeds.

Its cells and commands run in this process. The notebook on chat data has a kernel of Jupyter.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tests.conftest import Capture
from tests.helpers.commands import page_command

TOUR = Path(__file__).parents[3] / "docs" / "tour.ipynb"
FEWER = {
    "pretraining_steps = 30": "pretraining_steps = 3",
    "rounds = 10": "rounds = 3",
    "strategy.rounds=60": "strategy.rounds=3",
    "--seeds 2": "--seeds 1",
}


class Notebook:
    """Runs cells: Python, lines of the shell with {expressions}, and files."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"get_ipython": lambda: self}

    def run(self, source: str) -> None:
        exec(TransformerManager().transform_cell(source), self.names)  # noqa: S102

    def system(self, line: str) -> None:
        command = eval(f"f{line!r}", self.names)  # noqa: S307
        sys.stdout.write(page_command(command, Path.cwd()))

    def run_cell_magic(self, name: str, line: str, cell: str) -> None:
        assert name == "writefile"
        Path(line).write_text(cell, encoding="utf-8")


def test_every_cell_of_the_tour_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    page = TOUR.read_text(encoding="utf-8")
    assert all(more in page for more in FEWER)
    cells = json.loads(page)["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    notebook = Notebook()
    for cell in cells:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            notebook.run(re.sub("|".join(FEWER), lambda more: FEWER[more[0]], source))
    text = capsys.readouterr().out
    start, end = map(float, re.findall(r"held-out loss ([\d.]+) -> ([\d.]+)", text)[0])
    assert end < start
    assert "uls vs non-private" in text
    assert text.count("AUROC") >= 2
    assert text.count("Every user has (ε = 7.9") >= 3  # the statement, the card and its check
