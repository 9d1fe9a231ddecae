"""The tour, as it stands in the notebook, with fewer rounds."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TOUR = Path(__file__).parents[3] / "docs" / "tour.ipynb"
FEWER = {"rounds = 10": "rounds = 3", "strategy.rounds=60": "strategy.rounds=3"}


def test_every_cell_of_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(TOUR, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    for cell in notebook.cells:
        for rounds, fewer in FEWER.items():
            cell.source = cell.source.replace(rounds, fewer)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = "\n".join(
        str(output.get("text") or output["data"])
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    start, end = map(float, re.findall(r"held-out loss ([\d.]+) -> ([\d.]+)", text)[0])
    assert end < start
    assert "uls vs non-private" in text
    assert text.count("AUROC") >= 2
    assert text.count("Every user has (ε = 7.9") >= 3  # the statement, the card and its check
