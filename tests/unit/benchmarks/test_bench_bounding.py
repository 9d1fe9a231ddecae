"""The benchmark of bounding, small: its rows have what docs/data.md quotes of them."""

from __future__ import annotations

import pytest

from fedsim.experiments.benchmarks import bounding


def test_rules_in_their_order_and_a_large_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounding, "_EXAMPLES", 2_000)
    monkeypatch.setattr(bounding, "_OWNERS", 200)
    rows = {row["case"]: row["details"] for row in bounding.run(graphs=3, large=(4_000, 400))}
    mean = {case: details.get("mean_part_of_optimum", 0.0) for case, details in rows.items()}
    for size in (4, 16):
        random, greedy, least, program = (
            mean[f"group size {size}, {rule}"]
            for rule in (
                "random, random",
                "greedy, random",
                "greedy, least-demand",
                "linear-program, random",
            )
        )
        assert random < greedy < least <= 1.0
        assert min(least, program) > 0.98
    large = rows["4,000 examples, greedy, least-demand"]
    assert 0 < large["most_of_an_owner"] <= 8
    assert rows["build, 4,000 examples"]["pairs"] > 4_000
