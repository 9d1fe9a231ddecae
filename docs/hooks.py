"""Files of the repository that pages link to, as pages of the site; used by mkdocs alone.

On a code host `../strategies/uls.py` opens the file. The site has no such file, so each one that a
page links to becomes a page that shows it, and the link goes there. A link to what does not exist
is left as it is, and mkdocs fails on it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".md": "markdown", ".sh": "sh"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for the README and for every file outside `docs` that a page links to."""
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    texts["readme.md"] = _LINK.sub(lambda link: _from_readme(link[1]), readme)
    pages = {
        path
        for uri, text in texts.items()
        for link in _LINK.findall(text)
        if (path := _outside(uri, link))
    }
    files.append(File.generated(config, "readme.md", content=texts["readme.md"]))
    for path in sorted(pages - {"README.md"}):
        files.append(File.generated(config, _page_of(path), content=_shown(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:  # noqa: ANN401
    """Send links that leave `docs` to the pages made for them."""
    uri = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        path = _outside(uri, link[1])
        return posixpath.relpath(_page_of(path), posixpath.dirname(uri)) if path else link[1]

    return _LINK.sub(moved, markdown)


def _from_readme(link: str) -> str:
    """Return a link of the README as one of a page in `docs`."""
    return link.removeprefix("docs/") if link.startswith("docs/") else f"../{link}"


def _outside(uri: str, link: str) -> str | None:
    """Return the file in the repository that a page's link names, if it is outside `docs`."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link))
    inside = path.startswith(("docs/", ".."))
    return None if inside or not (ROOT / path).exists() else path


def _page_of(path: str) -> str:
    return "readme.md" if path == "README.md" else f"files/{path}.md"


def _shown(path: str) -> str:
    """Return a page that shows a file, or names what a folder holds."""
    full = ROOT / path
    if full.is_dir():
        names = sorted(entry.name for entry in full.iterdir() if entry.name != "__pycache__")
        return f"# {path}\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = full.read_text(encoding="utf-8")
    language = _LANGUAGES.get(full.suffix, "text")
    return f"# {path}\n\n`````{language}\n{text}`````\n"
