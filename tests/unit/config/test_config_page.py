"""docs/config.md is what the schema says, and says something of every key."""

from __future__ import annotations

from pathlib import Path

from fedsim.config import Config
from fedsim.experiments.config_page import described, page, tables

PAGE = Path(__file__).parents[3] / "docs" / "config.md"


def test_the_page_is_what_the_schema_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "write it anew: python -m fedsim.experiments.config_page"
    )


def test_every_key_has_a_text() -> None:
    sections = [(name, section) for name, _, section in tables("", Config)]
    for name, section in sections:
        told = {key for other, each in sections if other == name for key in described(each)}
        assert not set(section.model_fields) - told - {"task"}, name


def test_no_table_is_left_out() -> None:
    names = {name for name, *_ in tables("", Config)}
    assert {"data.canaries", "strategy.clip.adaptive", "training.private_evaluation"} <= names
    keys = {key for *_, section in tables("", Config) for key in described(section)}
    assert {"concentration_radius", "min_weight", "l2_clip_norms", "batch_size"} <= keys
