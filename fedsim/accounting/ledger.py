"""Ledger of a run's noisy releases, and the ε that they cost together.

A release is charged before it is applied. The ledger charges each *draw* of noise: repeating a
seeded round after a crash publishes the same numbers and costs nothing more. Repeating a round with
fresh noise costs again.
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
    """Noisy releases of consecutive rounds, one per round.

    Attributes:
        first_round: the first round, from 0.
        num_rounds: number of rounds, at least 1.
        cost: cost of each release.
        release: id of the noise draw. An id that starts with "seeded" or "kept" marks a repeatable
            draw, which the id must determine. Any other id, such as "secure…", marks a draw that is
            new each time.
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
        """Whether a repeated release has the same numbers."""
        return self.release.startswith(("seeded", "kept"))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**vars(self), "cost": self.cost.to_json()}


@dataclass(frozen=True)
class Ledger:
    """All releases so far. Start from `Ledger()` and add with `charge`.

    Consecutive rounds of one kind are one item, so that the time to charge does not grow.
    """

    items: tuple[Releases, ...] = ()

    def charge(self, round: int, cost: RoundCost, release: str) -> Ledger:
        """Return the ledger with one more release; unchanged for a repeated repeatable release.

        Raises:
            ValueError: the round is negative; or the same draw was charged at another cost (the
                difference of the two releases would have no noise); or the price of a whole run
                does not cover the release, as its round is too late or its draw not repeatable.
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

        If a whole run has one price, its first release counts as all its rounds.
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
        """Return ε of all releases; 0 for an empty ledger, inf after a release without noise.

        Raises:
            ConfigError: delta is outside (0, 1), or the accountant has no proof for a cost.
        """
        return epsilon_of_composition(self.costs, delta, accountant, relation)

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as JSON values."""
        return {"version": _VERSION, "releases": [item.to_json() for item in self.items]}

    @classmethod
    def from_json(cls, data: Any) -> Ledger:  # noqa: ANN401  (any JSON value)
        """Return the ledger for a value of `to_json`.

        Raises:
            ConfigError: the version is unknown or the content invalid. An unreadable ledger must
                stop a run: it must not count as empty.
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
            f"{rounds} rounds pays for each of them once, and for no other round"
        )


def _with(items: tuple[Releases, ...], new: Releases) -> tuple[Releases, ...]:
    """Return the items with a release of one round added: merged if consecutive, else as new."""
    for at, item in enumerate(items):
        same_kind = (item.release, item.cost) == (new.release, new.cost)
        if same_kind and item.end == new.first_round:
            longer = replace(item, num_rounds=item.num_rounds + 1)
            return (*items[:at], longer, *items[at + 1 :])
    return (*items, new)
