"""Earlier training of a starting point: its own promise counts beside that of the run."""

from __future__ import annotations

from pathlib import Path

from fedsim.accounting import PROMISE
from fedsim.errors import ConfigError
from fedsim.registry import names
from fedsim.utils.files import hub_folder, shown_name

BUILT_IN = ("tiny-gpt", "mcmahan-lstm")
"""Models that fedsim itself makes, of public text."""


def earlier_training(name_or_path: str, adapter: str | None = None) -> tuple[str, ...]:
    """Return sentences on the training that a starting point has behind it, as far as is known.

    Args:
        name_or_path: of the model, as in the config.
        adapter: a folder with adapters to start from.
    """
    sentences = []
    if adapter is not None:
        sentences.append(
            f"Training went on from the adapter {shown_name(adapter)!r}; fedsim does not know what "
            "text that was trained on."
        )
    for start in filter(None, (name_or_path, adapter)):
        if start in names("models"):
            if start not in BUILT_IN:
                sentences.append(
                    f"{start!r} is a plug-in's: fedsim does not know what it was trained on."
                )
        elif (statement := _own_statement(start)) is not None:
            sentences.append(
                f"{shown_name(start)!r} has a promise of its own, and where the people are the "
                f"same both count, added up: {statement}"
            )
    return tuple(sentences)


def promise_folder(start: str) -> Path | None:
    """Return the folder of a start's files that has a privacy.json; None if none is known."""
    path = Path(start).expanduser().resolve()
    if not path.exists():
        return hub_folder(start, PROMISE)
    folder = path.parent if path.is_file() else path
    return folder if (folder / PROMISE).is_file() else None


def _own_statement(start: str) -> str | None:
    from fedsim.accounting.promise import origin, read_promise  # noqa: PLC0415  (scipy and more)

    folder = promise_folder(start)
    if folder is None:
        return None
    try:
        content = read_promise(folder)
        return f"{content['statement']} {origin(content)}".rstrip()
    except (ConfigError, LookupError, TypeError):
        return "its privacy.json cannot be read."
