"""Ledger of a run's noisy releases, as a value, and the ε that they cost together.

A release is charged before it is applied. What is charged is the *draw*: replaying a seeded
round after a crash publishes the same numbers again and costs nothing more, while a round with
fresh entropy costs again every time it is made.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.events import RoundCost
from fedsim.errors import ConfigError
from fedsim.sampling import Relation

_VERSION = 2


@dataclass(frozen=True)
class Releases:
    """One noisy release of each of some consecutive rounds.

    Attributes:
        first_round: from 0.
        num_rounds: at least 1.
        cost: the mechanism that made each of them.
        release: the id of the noise draw within the round. An id that begins with "seeded" or
            "kept" is a draw that can be repeated, and must name all that decides it; any other id,
            such as one that begins with "secure", is a fresh draw each time.
    """

    first_round: int
    num_rounds: int
    cost: RoundCost
    release: str

    @property
    def end(self) -> int:
        """The round after the last."""
        return self.first_round + self.num_rounds

    @property
    def repeatable(self) -> bool:
        """Whether making a release again gives the same numbers."""
        return self.release.startswith(("seeded", "kept"))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "first_round": self.first_round,
            "num_rounds": self.num_rounds,
            "release": self.release,
            "cost": self.cost.to_json(),
        }


@dataclass(frozen=True)
class Ledger:
    """All releases so far. Start from `Ledger()` and add with `charge`.

    Consecutive rounds of one kind are one item, so that charging the ten-thousandth takes as long
    as the first.
    """

    items: tuple[Releases, ...] = ()

    def charge(self, round: int, cost: RoundCost, release: str) -> Ledger:
        """Return the ledger with one more release; itself, for a repeated seeded one.

        Raises:
            ValueError: a negative round, or a seeded round charged before at another cost:
                two different releases share one noise draw, and their difference has none. Or a
                release that the price of a whole run does not pay for: beyond its rounds, or one
                that cannot be repeated.
        """
        if round < 0:
            raise ValueError(f"round = {round!r}: give an integer >= 0")
        new = Releases(round, 1, cost, release)
        _check_of_run(new)
        for known in self.items if new.repeatable else ():
            if known.release == release and known.first_round <= round < known.end:
                if known.cost == cost:
                    return self
                raise ValueError(
                    f"round {round}, release {release!r}: charged before with {known.cost}, now "
                    f"with {cost}; use another seed for a run with another mechanism"
                )
        return Ledger(_with(self.items, new))

    @property
    def num_releases(self) -> int:
        """Number of charged releases."""
        return sum(item.num_rounds for item in self.items)

    @property
    def costs(self) -> list[tuple[RoundCost, int]]:
        """Each distinct cost with its number of releases, in order of first appearance.

        Where a whole run has one price, the first release of a run counts as all of them.
        """
        counts: Counter[tuple[RoundCost, str]] = Counter()
        for item in self.items:
            whole = item.cost.run_rounds is not None
            counts[item.cost, item.release if whole else ""] += item.num_rounds
        totals: Counter[RoundCost] = Counter()
        for (cost, _), rounds in counts.items():
            totals[cost] += cost.runs(rounds) * (cost.run_rounds or 1)
        return list(totals.items())

    def epsilon(
        self, delta: float, accountant: str | None = None, relation: Relation | None = None
    ) -> float:
        """Return ε of everything released; 0 for an empty ledger, inf after a noiseless release.

        Raises:
            ConfigError: delta outside (0, 1), or an accountant unsuited to one of the costs.
        """
        return epsilon_of_composition(self.costs, delta, accountant, relation)

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as JSON values."""
        return {"version": _VERSION, "releases": [item.to_json() for item in self.items]}

    @classmethod
    def from_json(cls, data: Any) -> Ledger:  # noqa: ANN401  (any JSON value)
        """Read what `to_json` wrote.

        Raises:
            ConfigError: an unknown version, or content that `to_json` does not write. An unreadable
                ledger stops a run: it must not be taken for an empty one.
        """
        try:
            if data["version"] != _VERSION:
                raise ValueError(f"version {data['version']!r}; this fedsim reads {_VERSION}")
            items = [
                Releases(
                    int(item["first_round"]),
                    int(item["num_rounds"]),
                    RoundCost.from_json(item["cost"]),
                    str(item["release"]),
                )
                for item in data["releases"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"ledger: cannot be read: {error}") from None
        return cls(tuple(items))


def _check_of_run(item: Releases) -> None:
    rounds = item.cost.run_rounds
    if rounds is not None and (item.end > rounds or not item.repeatable):
        raise ValueError(
            f"rounds {item.first_round} to {item.end - 1}, release {item.release!r}: the price of "
            f"{rounds} rounds pays for each of them once, and for no other"
        )


def _with(items: tuple[Releases, ...], new: Releases) -> tuple[Releases, ...]:
    """Return the items and a release of one round: in the item that it follows, or as a new one."""
    for at, item in enumerate(items):
        alike = (item.release, item.cost) == (new.release, new.cost)
        if alike and item.end == new.first_round:
            longer = replace(item, num_rounds=item.num_rounds + 1)
            return (*items[:at], longer, *items[at + 1 :])
    return (*items, new)
