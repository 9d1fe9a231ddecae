"""Sentences on a model's earlier training, whose privacy cost adds to that of the run."""

from __future__ import annotations

from pathlib import Path

from fedsim.accounting import PROMISE
from fedsim.errors import ConfigError
from fedsim.registry import names
from fedsim.utils.files import hub_folder, shown_name

BUILT_IN = ("tiny-gpt", "mcmahan-lstm")
"""Built-in models, made from public text."""


def earlier_training(name_or_path: str, adapter: str | None = None) -> tuple[str, ...]:
    """Return sentences on the known earlier training of a model.

    Args:
        name_or_path: the model, as in the config.
        adapter: folder with adapters to start from.
    """
    sentences = []
    if adapter is not None:
        sentences.append(
            f"Training started from the adapter {shown_name(adapter)!r}; fedsim does not know the "
            "text that the adapter was trained on."
        )
    for start in filter(None, (name_or_path, adapter)):
        if start in names("models"):
            if start not in BUILT_IN:
                sentences.append(
                    f"{start!r} is a plug-in's model: fedsim does not know its training text."
                )
        elif (statement := _own_statement(start)) is not None:
            sentences.append(
                f"{shown_name(start)!r} has its own privacy statement; for people in both data "
                f"sets the two ε and the two δ add up: {statement}"
            )
    return tuple(sentences)


def promise_folder(start: str) -> Path | None:
    """Return the folder of a model with its privacy.json; None if there is no such file."""
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
