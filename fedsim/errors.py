"""Errors that end a command with a fixed exit status."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class ConfigError(ValueError):
    """The command line, the config or the input is wrong: exit status 2.

    The message names the field, its value and an accepted value. It is shown without a traceback.
    """


class BudgetSpentError(RuntimeError):
    """The privacy budget does not allow another release: exit status 3."""


class SharedBudgetSpentError(BudgetSpentError):
    """A ledger shared by several runs does not allow another release: exit status 3."""


class HaltedError(RuntimeError):
    """A strategy's rule ended the run; earlier releases stay valid. Exit status 1."""


class SavedModelError(RuntimeError):
    """The saved model cannot be opened, or differs from the trained one: exit status 1."""


class RunsFailedError(RuntimeError):
    """Some of several runs failed, one line each; the others are complete. Exit status 1."""


class DivergedError(RuntimeError):
    """The parameters or the held-out loss became NaN or infinite: exit status 1.

    Files written before that stay.
    """


def nearest(name: str, known: Sequence[str], cutoff: float = 0.5) -> str:
    """Return "did you mean …?" with the most similar known name; "" if none is similar.

    Args:
        name: the unknown name.
        known: the accepted names.
        cutoff: minimum similarity, from 0 to 1 (`difflib`).

    Examples:
        >>> nearest("tiny-gtp", ["tiny-gpt", "mcmahan-lstm"]), nearest("x", ["tiny-gpt"])
        ("did you mean 'tiny-gpt'?", '')
        >>> nearest("gpt2", ["tiny-gpt"], 0.6)
        ''
    """
    near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else ""


def kind_of(value: object) -> str:
    """Return the type name of `value` with "a" or "an".

    Examples:
        >>> kind_of(1), kind_of("x")
        ('an int', 'a str')
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


@contextmanager
def about(what: str, kinds: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Turn an error inside the block into a `ConfigError` whose message starts with `what`.

    Args:
        what: prefix of the message: the field and its value, then a colon.
        kinds: error types to catch; the default includes `ConfigError`.
    """
    try:
        yield
    except kinds as error:
        raise ConfigError(f"{what}{error}") from error
