"""Links between our pages, and from them into the repository, lead somewhere on a code host too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_FENCED = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MODULE = re.compile(r"^::: (\S+)$", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def has(page: Path, anchor: str) -> bool:
    """Whether a heading is called so in links: lower case, hyphens, no punctuation.

    Or, in a page of the API, a name in one of its modules: which there are, `make docs` knows.
    """
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    if any(anchor.startswith(f"{module}.") for module in _MODULE.findall(text)):
        return True
    titles = [heading.lower().strip() for heading in _HEADING.findall(text)]
    return anchor in {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    found = []
    for link in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        if link.startswith(("http://", "https://")):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and not has(target, anchor)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken(page)


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n[a](page.md#one-thing) [b](gone.md) [c](page.md#two)\n")
    assert broken(page) == ["gone.md", "page.md#two"]
