"""The ledger: every noisy release of a run, as a value, and what they cost together.

A release is charged before it is applied. What is charged is the *draw*: replaying a seeded
round after a crash publishes the same numbers again and costs nothing more, while a round with
fresh entropy costs again every time it is made.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dp_accounting

from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.events import RoundCost
from fedsim.accounting.relations import Relation
from fedsim.errors import ConfigError

_VERSION, _READABLE = 2, (1, 2)  # 1 knew Poisson sampling only
_RUN_KEYS = {"first_round", "num_rounds", "release", "cost"}


@dataclass(frozen=True)
class LedgerEntry:
    """One noisy release.

    Attributes:
        round: the round that made it, from 0.
        cost: the mechanism that made it.
        release: the id of the noise draw within the round. An id that begins with "seeded" is
            a draw that can be repeated, and must name all that decides it (the seed); any
            other id, such as "secure", is a fresh draw each time.
    """

    round: int
    cost: RoundCost
    release: str

    @property
    def repeatable(self) -> bool:
        """Whether making the release again gives the same numbers."""
        return self.release.startswith("seeded")


@dataclass(frozen=True)
class Ledger:
    """All releases so far, in order of rounds. Start from `Ledger()` and add with `charge`."""

    entries: tuple[LedgerEntry, ...] = ()

    def charge(self, round: int, cost: RoundCost, release: str) -> Ledger:
        """Return the ledger with one more release; itself, for a repeated seeded one.

        Raises:
            ValueError: a negative round, or a seeded round charged before at another cost:
                two different releases share one noise draw, and their difference has none.
        """
        if round < 0:
            raise ValueError(f"round = {round!r}: give an integer >= 0")
        entry = LedgerEntry(round, cost, release)
        position = bisect.bisect_right(self.entries, round, key=lambda other: other.round)
        if entry.repeatable and (known := self._find(position, round, release)) is not None:
            if known.cost == cost:
                return self
            raise ValueError(
                f"round {round}, release {release!r}: charged before with {known.cost}, now "
                f"with {cost}; use another seed for a run with another mechanism"
            )
        return Ledger((*self.entries[:position], entry, *self.entries[position:]))

    def _find(self, end: int, round: int, release: str) -> LedgerEntry | None:
        while end > 0 and self.entries[end - 1].round == round:
            end -= 1
            if self.entries[end].release == release:
                return self.entries[end]
        return None

    @property
    def num_releases(self) -> int:
        """How many releases were charged."""
        return len(self.entries)

    @property
    def costs(self) -> list[tuple[RoundCost, int]]:
        """Each distinct cost with its number of releases, in order of first appearance."""
        return list(Counter(entry.cost for entry in self.entries).items())

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The event of everything released, equal costs merged."""
        events = [cost.composed(count) for cost, count in self.costs]
        if not events:
            return dp_accounting.NoOpDpEvent()
        return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)

    def epsilon(
        self, delta: float, accountant: str | None = None, relation: Relation | None = None
    ) -> float:
        """Return ε of everything released; 0 for an empty ledger, inf after a noiseless release.

        Raises:
            ConfigError: delta outside (0, 1), or an accountant unsuited to one of the costs.
        """
        return epsilon_of_composition(self.costs, delta, accountant, relation)

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as JSON values; consecutive rounds of one kind are one item."""
        runs: list[dict[str, Any]] = []
        last: LedgerEntry | None = None
        for entry in self.entries:
            if last is not None and entry == dataclasses.replace(last, round=last.round + 1):
                runs[-1]["num_rounds"] += 1
            else:
                runs.append(
                    {
                        "first_round": entry.round,
                        "num_rounds": 1,
                        "release": entry.release,
                        "cost": entry.cost.to_json(),
                    }
                )
            last = entry
        return {"version": _VERSION, "releases": runs}

    @classmethod
    def from_json(cls, data: object) -> Ledger:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: an unknown version, or anything that `to_json` does not write. A ledger
                that cannot be read must stop a run: it cannot be taken for an empty one.
        """
        if not isinstance(data, Mapping) or "version" not in data:
            raise ConfigError("ledger: not a ledger; expected an object with a version")
        if data["version"] not in _READABLE:
            raise ConfigError(
                f"ledger: version = {data['version']!r}: this fedsim reads {_READABLE}"
            )
        runs = data.get("releases")
        if not isinstance(runs, list):
            raise ConfigError(f"ledger: releases = {runs!r}: expected a list")
        entries = [entry for run in runs for entry in _entries(run)]
        repeatable = [(entry.round, entry.release) for entry in entries if entry.repeatable]
        if len(set(repeatable)) != len(repeatable):
            raise ConfigError("ledger: a seeded release stands in it twice")
        return cls(tuple(sorted(entries, key=lambda entry: entry.round)))


def _entries(run: object) -> list[LedgerEntry]:
    if not isinstance(run, Mapping) or set(run) != _RUN_KEYS:
        raise ConfigError(f"ledger: releases has {run!r}: expected keys {sorted(_RUN_KEYS)}")
    first, count, release = run["first_round"], run["num_rounds"], run["release"]
    # `type`, since a JSON true is an int to isinstance
    if type(first) is not int or type(count) is not int or first < 0 or count < 1:
        raise ConfigError(f"ledger: releases has first_round {first!r}, num_rounds {count!r}")
    if not isinstance(release, str):
        raise ConfigError(f"ledger: release = {release!r}: expected a string")
    cost = RoundCost.from_json(run["cost"])
    return [LedgerEntry(round_, cost, release) for round_ in range(first, first + count)]
