"""One run's access to the ledger that it shares with others: registered, charged or refused."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from fedsim.accounting.accountants import choose
from fedsim.accounting.events import Composition, RoundCost
from fedsim.config import SharedLedgerConfig
from fedsim.errors import BudgetSpentError, ConfigError
from fedsim.file_lock import locked, refuse_without, wait
from fedsim.paths import write_atomically
from fedsim.plan import RoundPlan
from fedsim.shared_ledger import SharedLedger, merged, read_shared


@dataclass(frozen=True)
class SharedAccount:
    """One run's access to a ledger file.

    Attributes:
        path: of the file, made by the first release, or when runs are registered together.
        terms: the budget as this run's config states it; all runs must state the same.
    """

    path: Path
    terms: SharedLedger

    def check(self) -> None:
        """Raise `ConfigError` if the file cannot be read or has another budget; write nothing."""
        if self.path.exists():
            self._read()

    def register(self, planned: Composition) -> None:
        """Register what several runs will release, before the first of them begins.

        Nothing happens if something was released before, or if just this stands registered, as
        when a comparison is taken up that was killed before its first release.

        Raises:
            ConfigError: the file cannot be read or has another budget, or cannot be locked.
        """
        with self._locked():
            shared = self._read()
            if not shared.ledger.items and shared.registered != merged(planned):
                self._write(shared.registering(planned))

    def charge(self, round: int, cost: RoundCost, release: str, ahead: int) -> None:
        """Charge one release, on disk when this returns, or refuse it and charge nothing.

        Processes that share the file wait for each other. The first release of all registers what
        its run plans, unless it stands registered with other runs.

        Args:
            round: the round.
            cost: of the release.
            release: its id; a seeded one that stands in the ledger already costs nothing.
            ahead: how many releases like it the run still plans, this one counted.

        Raises:
            BudgetSpentError: it would exceed the budget.
            ConfigError: the file cannot be read, has another budget, or cannot be locked.
        """
        with self._locked():
            shared = self._read()
            charged = shared.ledger.charge(round, cost, release)
            if charged is shared.ledger:
                return
            if not shared.ledger.items and cost not in dict(shared.registered):
                shared = shared.registering([(cost, ahead)])
            written = replace(shared, ledger=charged)
            if not written.keeps_budget:
                raise BudgetSpentError(
                    f"round {round}: this release would exceed its budget, with what the ledger "
                    f"{self.path} holds already{self._why(shared)}; fedsim account ledger "
                    f"{self.path} says what is spent, and by what"
                )
            self._write(written)

    @staticmethod
    def _why(shared: SharedLedger) -> str:
        if shared.order is not None or not shared.registered:
            return ""
        return (
            ", which pays for what was registered before its first release and for nothing else: "
            "only so does the budget suffice for that"
        )

    def _locked(self) -> AbstractContextManager[int]:
        lock = self.path.with_name(f".{self.path.name}.lock")
        return locked(lock, wait, without=refuse_without)

    def _write(self, shared: SharedLedger) -> None:
        write_atomically(self.path, json.dumps(shared.to_json(), indent=1) + "\n")

    def _read(self) -> SharedLedger:
        if not self.path.exists():
            return self.terms
        found = read_shared(self.path)
        if found.terms != self.terms.terms:
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
