"""Coins of pools that are nothing but a number of units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.seeding import Coins, Draws, Hashes, Uniforms


def seeded(seed: int, count: int, users: Hashes | None = None) -> Coins:
    """Return coins of so many units."""
    return Draws(seed, "seeded").coins(np.arange(count, dtype=np.uint64), users)


def secret(count: int) -> Coins:
    """Return coins that no call repeats."""
    return Draws(0, "secure").coins(np.arange(count, dtype=np.uint64))


@dataclass(frozen=True)
class Same:
    """The coins of one round in every round."""

    coins: Coins
    round: int = 0

    def of_units(self, round: int) -> Uniforms:
        """Return those of the one round."""
        return self.coins.of_units(self.round)

    def of_users(self, round: int) -> Uniforms:
        """Return those of the one round."""
        return self.coins.of_users(self.round)
