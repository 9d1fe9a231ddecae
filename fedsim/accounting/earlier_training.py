"""What a starting point was trained on before: its promise counts beside that of the run.

Any loader's: it is read from the files that the config names, not from the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsim.accounting import GIVEN, PROMISE, is_unfinished
from fedsim.errors import ConfigError
from fedsim.registry import names
from fedsim.utils.files import hub_folder, shown_name
from fedsim.utils.json_text import read_json

BUILT_IN = ("tiny-gpt", "mcmahan-lstm")
"""Models that fedsim itself makes, of text that is nobody's private text."""


def earlier_training(name_or_path: str, adapter: str | None = None) -> tuple[str, ...]:
    """Return sentences on the training that a starting point has behind it, as far as is known.

    Args:
        name_or_path: of the model, as in the config.
        adapter: a folder with adapters to start from.
    """
    return tuple(_sentences(name_or_path, adapter))


def _sentences(name_or_path: str, adapter: str | None) -> Iterator[str]:
    if adapter is not None:
        yield (
            f"Training went on from the adapter {shown_name(adapter)!r}; fedsim does not know what "
            "text that was trained on."
        )
    for start in filter(None, (name_or_path, adapter)):
        shown = shown_name(start)
        if start in BUILT_IN:
            continue
        if start in names("models"):
            yield f"{shown!r} is a plug-in's: fedsim does not know what it was trained on."
            continue
        try:
            folder = folder_of(start)
        except LookupError:
            yield _of_unknown(shown)
            continue
        if (earlier := promise_of(folder)) is not None:
            yield from _quoted(shown, earlier)
        elif (folder / GIVEN).exists():
            yield from _of_note(shown, given_note(folder))
        elif is_unfinished(folder):
            yield _of_unfinished(shown)


def promise_of(folder: Path) -> dict[str, Any] | None:
    """Return a folder's promise, or what is quoted of one that does not verify; None without."""
    if not (folder / PROMISE).exists():
        return None
    from fedsim.accounting.promise import verify  # noqa: PLC0415  (scipy and more)

    try:
        return verify(folder)
    except ConfigError:
        return {"statement": "it does not verify.", "assumptions": []}


def folder_of(start: str) -> Path:
    """Return where the files of a starting point are: of a hub id, in the hub's cache.

    Raises:
        LookupError: of a hub id, whether there is a promise is not known.
    """
    path = Path(start).expanduser().resolve()  # a link's own neighbours are not the run's
    if path.is_file():
        return path.parent  # of a GGUF file, what lies beside it
    if not path.exists():
        return hub_folder(start, PROMISE) or path
    if not (path / PROMISE).exists():  # a folder of links to a run's weights
        for file in sorted(path.glob("*.safetensors")):
            if file.resolve().parent != path:
                return file.resolve().parent
    return path


def given_note(folder: Path) -> Any:  # noqa: ANN401  (whatever JSON can say)
    """Return the note on weights that were given from Python, None if it cannot be read."""
    try:
        return read_json(folder / GIVEN)
    except (OSError, ValueError):
        return None


def _of_note(shown: str, note: Any) -> list[str]:  # noqa: ANN401
    try:
        return list(_of_given(note))
    except (AttributeError, KeyError, TypeError):  # cut off, or somebody else's
        return [f"What the weights of {shown!r} were trained on is not known."]


def _of_given(note: Mapping[str, Any]) -> Iterator[str]:
    """Yield what weights that were given from Python have behind them, by their note."""
    opened = note["opened"]
    if note["changed"]:
        yield (
            f"Its weights were given from Python: opened from {opened!r}, and not what is there. "
            "What they were trained on since counts too, where the people are the same."
        )
    if note.get("unknown", False):  # notes of older versions have none
        yield _of_unknown(opened)
    if note["promise"] is not None:
        yield from _quoted(opened, note["promise"])
    if note["unfinished"]:
        yield _of_unfinished(opened)
    if note["given"] is not None:
        yield from _of_note(opened, note["given"])


def _of_unknown(shown: str) -> str:
    return (
        f"Whether {shown!r} has a promise of its own could not be looked up, as no hub was "
        "reached: if it has one, both count where the people are the same."
    )


def _of_unfinished(shown: str) -> str:
    return (
        f"{shown!r} is of a run of fedsim that did not finish, and has no promise: its releases "
        "count too, where the people are the same."
    )


def _quoted(shown: str, earlier: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a start promises, and what it says of its own start."""
    from fedsim.accounting.promise import ORIGIN  # noqa: PLC0415

    yield (
        f"{shown!r} has a promise of its own, and where the people are the same both count, "
        f"added up: {earlier['statement']}"
    )
    yield from (
        f"Of what that began with: {said.removeprefix(ORIGIN)}"
        for said in earlier["assumptions"]
        if said.startswith(ORIGIN)
    )
