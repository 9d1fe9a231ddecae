"""Describe δ as a power of the number n of users, and check δ < 1/n."""

from __future__ import annotations

import math

from fedsim.errors import ConfigError


def is_promise(delta: float, num_users: int) -> bool:
    """Return whether δ < 1/n; a larger δ allows publishing one random user's data."""
    return delta * num_users < 1.0


def delta_sentence(
    delta: float,
    num_users: int,
    public: bool,
    origin: str = "a number declared public",
    noun: str = "users",
) -> str:
    """Return a sentence with δ as a power of n, and a warning unless δ < 1/n.

    Args:
        delta: δ, in (0, 1).
        num_users: n >= 2.
        public: whether n is a public number; if not, it was counted in the data.
        origin: reason why n is public, in words.
        noun: "users" or "owners".

    Raises:
        ConfigError: fewer than two users.
    """
    if num_users < 2:  # log 1 is 0: the n^-x of one user is 1 for every x
        raise ConfigError(f"num_users = {num_users!r}: give an integer >= 2")
    exponent = -math.log(delta) / math.log(num_users)
    if not public:
        origin = "counted in the private data, which the guarantee does not cover"
    sentence = f"δ = {delta:.3g} is n^-{exponent:.3g} for n = {num_users:,} {noun}, {origin}."
    if not is_promise(delta, num_users):
        sentence += (
            f" Warning: δ is not below 1/n = {1 / num_users:.3g}, so even publishing everything "
            "about one user drawn at random would keep the promise; take a smaller δ."
        )
    return sentence
