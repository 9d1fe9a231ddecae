"""A ledger that several runs on the same people share: together they keep one budget."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.accounting.accountants import choose
from fedsim.accounting.budget import Budget
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.relations import Relation
from fedsim.config import SharedLedgerConfig
from fedsim.errors import BudgetSpentError, ConfigError
from fedsim.file_lock import locked, wait
from fedsim.json_text import read_json
from fedsim.paths import write_atomically
from fedsim.plan import RoundPlan

_VERSION = 1
_KEYS = {"version", "epsilon", "delta", "relation", "ledger"}


@dataclass(frozen=True)
class SharedLedger:
    """What a ledger file holds.

    Attributes:
        epsilon: the budget of all releases together.
        delta: at which it is computed.
        relation: the neighbouring relation that all runs have.
        ledger: every release of every run; a seeded one that two runs repeat counts once.
    """

    epsilon: float
    delta: float
    relation: Relation
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def budget(self) -> Budget:
        """The budget, by the accountant that suits what is in the ledger."""
        return Budget(self.epsilon, self.delta, None, self.relation)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {
            "version": _VERSION,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation.value,
            "ledger": self.ledger.to_json(),
        }


def read_shared(path: Path) -> SharedLedger:
    """Read a shared ledger.

    Raises:
        ConfigError: unreadable, of another version, or not what fedsim writes. Such a file must
            stop a run: it cannot be taken for an empty one.
    """
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"shared ledger {path}: cannot be read: {error}") from None
    if not isinstance(data, Mapping) or data.get("version") != _VERSION or set(data) != _KEYS:
        raise ConfigError(f"shared ledger {path}: not one that this fedsim writes (version 1)")
    epsilon, delta = data["epsilon"], data["delta"]
    if not (_is_number(epsilon) and epsilon > 0.0 and _is_number(delta) and 0.0 < delta < 1.0):
        raise ConfigError(f"shared ledger {path}: epsilon = {epsilon!r}, delta = {delta!r}")
    try:
        relation = Relation(data["relation"])
    except ValueError:
        raise ConfigError(f"shared ledger {path}: relation = {data['relation']!r}") from None
    return SharedLedger(epsilon, delta, relation, Ledger.from_json(data["ledger"]))


def _is_number(value: object) -> bool:
    # Compared, since `math.isfinite` falls over an integer of hundreds of digits.
    return isinstance(value, int | float) and type(value) is not bool and abs(value) < math.inf


@dataclass
class SharedAccount:
    """One run's access to a ledger file.

    Attributes:
        path: of the file, made by the first release.
        terms: the budget as this run's config states it; all runs must state the same.
    """

    path: Path
    terms: SharedLedger
    _seen: Ledger | None = field(default=None, init=False)
    _paid: int = field(default=0, init=False)

    def check(self) -> None:
        """Raise `ConfigError` if the file cannot be read or has another budget; write nothing."""
        if self.path.exists():
            self._read()

    def charge(self, round: int, cost: RoundCost, release: str, ahead: int) -> None:
        """Charge one release, on disk when this returns, or refuse it and charge nothing.

        Processes that share the file wait for each other. How many more releases fit is computed
        once, and again when another process has charged something meanwhile.

        Args:
            round: the round.
            cost: of the release.
            release: its id; a seeded one that stands in the ledger already costs nothing.
            ahead: how many releases like it the run still plans, this one counted.

        Raises:
            BudgetSpentError: it would exceed the budget.
            ConfigError: the file cannot be read, or has another budget.
        """
        with locked(self.path.with_name(f".{self.path.name}.lock"), wait):
            shared = self._read()
            charged = shared.ledger.charge(round, cost, release)
            if charged is shared.ledger:
                return
            if shared.ledger != self._seen:
                self._paid = shared.budget.affordable(shared.ledger, cost, ahead)
            if self._paid < 1:
                raise BudgetSpentError(
                    f"round {round}: this release would exceed its budget, with what the ledger "
                    f"{self.path} holds already; fedsim account ledger {self.path} says what is "
                    "spent, and by what"
                )
            written = replace(shared, ledger=charged)
            write_atomically(self.path, json.dumps(written.to_json(), indent=1) + "\n")
            self._seen, self._paid = charged, self._paid - 1

    def _read(self) -> SharedLedger:
        if not self.path.exists():
            return self.terms
        found = read_shared(self.path)
        if replace(found, ledger=Ledger()) != self.terms:
            raise ConfigError(
                f"privacy.shared: {self.path} keeps ε = {found.epsilon:g} at δ = {found.delta:g} "
                f"under {found.relation.value}, this config says {self.terms.epsilon:g}, "
                f"{self.terms.delta:g}, {self.terms.relation.value}; runs that share a ledger "
                "share its budget"
            )
        return found


def shared_account(config: SharedLedgerConfig | None, plan: RoundPlan) -> SharedAccount | None:
    """Return a run's access to the ledger that its config names, or None; write nothing.

    Raises:
        ConfigError: the file cannot be read or has another budget; or a strategy that tests
            for concentration, whose price is that of a whole run and not of a release.
    """
    if config is None:
        return None
    if plan.sampling.kind == "concentrated":
        raise ConfigError(
            f"privacy.shared: strategy {plan.strategy!r} has a price for a whole run, not for a "
            "release; it cannot share a ledger"
        )
    if not plan.sampling.guaranteed:
        raise ConfigError(
            f"privacy.shared: {plan.sampling.kind!r} sampling gives no guarantee, only a "
            "hypothetical ε; it cannot be added to those of other runs"
        )
    _, relation = choose([plan.cost], plan.accountant, plan.relation)
    terms = SharedLedger(config.epsilon, config.delta, relation)
    account = SharedAccount(Path(config.ledger).expanduser(), terms)
    account.check()
    return account
