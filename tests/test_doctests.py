"""Every example in a docstring is true: those of the public API, and whatever else has one."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import fedsim

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("fedsim", "fedsim/strategies", "fedsim/clients")
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")  # nothing else is imported for it
)


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.FAIL_FAST)
    assert results.attempted > 0
    assert results.failed == 0


def test_the_api_page_lists_the_public_names() -> None:
    page = (ROOT / "docs" / "api" / "README.md").read_text(encoding="utf-8")
    public = page.split("## Modules")[0]
    assert not [name for name in fedsim.__all__ if f"[`{name}`](" not in public]
