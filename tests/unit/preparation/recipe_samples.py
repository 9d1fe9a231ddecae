"""The recipes on samples of a dozen records, in which nobody has as much as a paper asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsim.data.config import load_recipe

SAME_AS = {"enron-owners": "enron-chua", "open-assistant-threads": "open-assistant"}
"""Recipes of the same set as another."""

SAMPLES = Path(__file__).parents[2] / "samples" / "recipes"


def on_sample(name: str) -> dict[str, Any]:
    """Return the [data] keys of a recipe on its sample: all steps, but two texts are enough."""
    steps = [
        {**step, "count": 2} if step["step"] == "min-examples" else step
        for step in load_recipe(name).data.get("preparation", [])
    ]
    given = {"recipe": name, "source": str(SAMPLES / f"{SAME_AS.get(name, name)}.jsonl")}
    return {**given, "preparation": steps} if steps else given
