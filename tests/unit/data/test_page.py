"""docs/data.md names every step, every setting of its table, and every recipe; and no other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from fedsim.config import parse_config
from fedsim.data.config import load_recipe, recipe_names
from fedsim.data.preparation.prepare import STEPS

PAGE = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")


def _rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_table_of_steps() -> None:
    told = {
        names[0]: set(names[1:])
        for names in (re.findall(r"`([\w-]+)`", row[0]) for row in _rows("Steps of a preparation"))
    }
    assert set(told) == set(STEPS)
    for name, settings in told.items():
        assert settings <= set(STEPS[name].model_fields)
        assert {key for key, field in STEPS[name].model_fields.items() if field.is_required()} <= (
            settings
        )


def test_the_table_of_recipes() -> None:
    told = {row[0].strip("`"): row[3] for row in _rows("Recipes")}
    assert list(told.keys() ^ recipe_names()) == []
    for name, hub in told.items():
        source = load_recipe(name).data.get("source")
        assert source is None or hub == f"`{source}`"


def test_the_example_is_a_config() -> None:
    text = PAGE.split("```toml\n")[1].split("```")[0]
    data = parse_config(tomllib.loads(text)).data
    assert [step.step for step in data.preparation] == ["merge-users", "min-examples"]
