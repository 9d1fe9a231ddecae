"""The errors that end a command with a status of their own."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class ConfigError(ValueError):
    """The command line, the config or the input is wrong: exit status 2.

    The message names the field, the value and what would do; it is shown without a traceback.
    """


class BudgetSpentError(RuntimeError):
    """The privacy budget does not allow another release: exit status 3."""


class SharedBudgetSpentError(BudgetSpentError):
    """The budget of a ledger that runs share does not allow it: what is left, others decided."""


class HaltedError(RuntimeError):
    """A strategy's own rule ended the run: what was released before stays valid. Exit status 1."""


class SavedModelError(RuntimeError):
    """What was saved cannot be opened, or is not what was trained: exit status 1."""


class RunsFailedError(RuntimeError):
    """Some runs of several failed, a line each; the others are done and written: exit status 1."""


class DivergedError(RuntimeError):
    """Parameters or the held-out loss are not finite any more: exit status 1.

    What was written while they were finite stays.
    """


def nearest(name: str, known: Sequence[str], cutoff: float = 0.5) -> str:
    """Return the question whether the known name that is most alike was meant; "" if none is.

    Args:
        name: as it was written.
        known: what it may have been meant to be.
        cutoff: the least likeness, from 0 to 1, of `difflib`.

    Examples:
        >>> nearest("tiny-gtp", ["tiny-gpt", "mcmahan-lstm"]), nearest("x", ["tiny-gpt"])
        ("did you mean 'tiny-gpt'?", '')
        >>> nearest("gpt2", ["tiny-gpt"], 0.6)
        ''
    """
    near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else ""


def kind_of(value: object) -> str:
    """Return the name of a value's type, with its article.

    Examples:
        >>> kind_of(1), kind_of("x")
        ('an int', 'a str')
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


@contextmanager
def about(what: str, kinds: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Raise a `ConfigError` for an error inside, with what it is about before its words.

    Args:
        what: such as the field and its value, with the colon behind it.
        kinds: of errors; by default `ValueError`, of which a `ConfigError` is one.
    """
    try:
        yield
    except kinds as error:
        raise ConfigError(f"{what}{error}") from error
