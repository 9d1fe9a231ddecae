"""Pictures of pages for the README: `python -m tests.helpers.screenshots OUT.html picture.png`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.errors import ConfigError
from fedsim.utils.files import write_atomically
from tests.helpers.browser import open_browser


def take(page: Path, picture: Path, *, selector: str = "body", width: int = 1200) -> None:
    """Open a page from disk in a headless browser and write a PNG of it.

    Args:
        page: an HTML file.
        picture: written whole, two dots a CSS pixel.
        selector: of the element that is shown, the whole page by default.
        width: of the window, CSS pixels.

    Raises:
        ConfigError: no such page, no browser, nothing that the selector finds.
    """
    if not page.is_file():
        raise ConfigError(f"page {page}: no such file; give the report.html of a run")
    with open_browser() as browser:
        opened = browser.open(page, width=width)
        try:
            shot = opened.picture(selector)
        except RuntimeError:
            raise ConfigError(f"--selector {selector!r}: nothing of {page} is so called") from None
    write_atomically(picture, shot)


def main(
    page: Annotated[Path, typer.Argument(help="An HTML file.")],
    picture: Annotated[Path, typer.Argument(help="The PNG that is written.")],
    selector: Annotated[str, typer.Option(help="CSS selector of what is shown.")] = "body",
    width: Annotated[int, typer.Option(min=200, help="Of the window, CSS pixels.")] = 1200,
) -> None:
    """Take a picture of a page with the Chromium of this machine."""
    try:
        take(page, picture, selector=selector, width=width)
    except ConfigError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
