"""A ledger that several runs on the same people share: together they keep one (ε, δ).

The rule is a Rényi filter at one order (`fedsim.accounting.privacy_filter`), which also covers runs
that were chosen after looking at earlier ones. The file is changed under a lock beside it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.accounting.accountants import choose
from fedsim.accounting.events import Composition, RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.privacy_filter import RenyiFilter, best_order
from fedsim.config import SharedLedgerConfig
from fedsim.errors import ConfigError, SharedBudgetSpentError
from fedsim.plan import RoundPlan
from fedsim.sampling import Relation
from fedsim.utils.files import write_atomically
from fedsim.utils.json_text import read_json
from fedsim.utils.locks import locked

log = logging.getLogger("fedsim")

_NOTHING = Ledger()

_VERSION = 3


@dataclass(frozen=True)
class SharedLedger:
    """The content of a ledger file.

    Attributes:
        epsilon: the budget of all releases together.
        delta: of the budget.
        relation: the neighbouring relation of all runs.
        order: of the Rényi filter, fixed before the first release.
        ledger: every release of every run.
    """

    epsilon: float
    delta: float
    relation: Relation
    order: float
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def filter(self) -> RenyiFilter:
        """The rule that allows or refuses a release."""
        return RenyiFilter(self.epsilon, self.delta, self.relation, self.order)

    @property
    def terms(self) -> tuple[float, float, Relation]:
        """ε, δ and relation: all runs must state the same."""
        return self.epsilon, self.delta, self.relation

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file as JSON values."""
        return {
            "version": _VERSION,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation.value,
            "order": self.order,
            "ledger": self.ledger.to_json(),
        }


def read_shared(path: Path) -> SharedLedger:
    """Read a shared ledger.

    Raises:
        ConfigError: the file cannot be read, or is no shared ledger of this version. It stops a
            run: it must not be taken for an empty ledger.
    """
    try:
        data = read_json(path)
        if data.get("version") != _VERSION or "order" not in data:
            raise ValueError(
                "not a shared ledger of this fedsim; give a file that runs share, or to begin one "
                "a name that is not there yet"
            )
        relation, ledger = Relation(data["relation"]), Ledger.from_json(data["ledger"])
        epsilon, delta, order = (float(data[key]) for key in ("epsilon", "delta", "order"))
        return SharedLedger(epsilon, delta, relation, order, ledger)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"shared ledger {path}: cannot be read: {error}") from None


@dataclass(frozen=True)
class SharedAccount:
    """One run's access to a ledger file.

    Attributes:
        path: of the file; the first release of all makes it.
        epsilon: the budget as this run's config states it.
        delta: as `epsilon`.
        relation: of this run.
    """

    path: Path
    epsilon: float
    delta: float
    relation: Relation

    def read(self, planned: Composition = ()) -> SharedLedger:
        """Return the content of the file; of a new one, with the best order for what is planned.

        Raises:
            ConfigError: the file cannot be read, or has another budget.
        """
        terms = self.epsilon, self.delta, self.relation
        if not self.path.exists():
            return SharedLedger(*terms, best_order(*terms, planned))
        shared = read_shared(self.path)
        if shared.terms != terms:
            raise ConfigError(
                f"privacy.shared: {self.path} keeps ε = {shared.epsilon:g} at δ = {shared.delta:g} "
                f"under {shared.relation.value}, this config says {self.epsilon:g}, "
                f"{self.delta:g}, {self.relation.value}; runs that share a ledger share its budget"
            )
        return shared

    def check_holds(self, own: Ledger) -> None:
        """Raise `ConfigError` where a run was charged and the file has none of its releases.

        A file that is gone, or another in its place, would give the budget out a second time.
        """
        ids = {item.release for item in own.items}
        held = self.read().ledger.items if self.path.exists() else ()
        if ids and not any(item.release in ids for item in held):
            raise ConfigError(
                f"privacy.shared.ledger = {str(self.path)!r}: holds no release of this run, which "
                "was charged in a file of this name; put that file back, or resume from the folder "
                "that the run was begun in"
            )

    def charge(
        self,
        round: int,
        cost: RoundCost,
        release: str,
        planned: Composition = (),
        own: Ledger = _NOTHING,
    ) -> None:
        """Charge one release, on disk when this returns, or refuse it and charge nothing.

        Processes that share the file wait for each other.

        Args:
            round: the round.
            cost: of the release.
            release: its id; one that can be repeated and stands in the ledger costs nothing.
            planned: releases of the run, from which the first of all chooses the filter's order.
            own: the releases that this run was charged for before: see `check_holds`.

        Raises:
            SharedBudgetSpentError: it would exceed the budget.
            ConfigError: the file cannot be read or locked, has another budget, or lacks `own`.
        """
        with locked(self.path.with_name(f".{self.path.name}.lock")):
            self.check_holds(own)
            shared = self.read(planned or [(cost, 1)])
            charged = shared.ledger.charge(round, cost, release)
            if charged is shared.ledger:
                return
            if not shared.filter.pays_for(charged.costs):
                raise SharedBudgetSpentError(
                    f"round {round}: this release would exceed its budget, with what the ledger "
                    f"{self.path} holds already; `fedsim account ledger {self.path}` says what is "
                    "spent, and by what"
                )
            text = json.dumps(replace(shared, ledger=charged).to_json(), indent=1) + "\n"
            write_atomically(self.path, text)


def shared_account(config: SharedLedgerConfig | None, plan: RoundPlan) -> SharedAccount | None:
    """Return a run's access to the ledger that its config names; write nothing.

    None without `[privacy.shared]`, and for a seeded run: a simulation charges no budget.

    Raises:
        ConfigError: the file cannot be read or has another budget, or the run has no guarantee.
    """
    if config is None:
        return None
    if plan.entropy == "seeded":
        log.warning(
            'privacy.shared with privacy.noise = "seeded": a simulated run charges no ledger'
        )
        return None
    if plan.noise_multiplier == 0.0 or not plan.sampling.guaranteed:
        raise ConfigError(
            "privacy.shared: this run has no guarantee that could share a budget; remove it, or "
            "take a strategy with noise and a sampler with a guarantee"
        )
    relation = choose([plan.cost], plan.accountant, plan.relation)[1]
    # One true name: a link would have a lock of its own, and the first write would replace it.
    path = Path(config.ledger).expanduser().resolve()
    account = SharedAccount(path, config.epsilon, config.delta, relation)
    if path.exists():
        account.read()
    elif not path.parent.is_dir():
        raise ConfigError(f"privacy.shared.ledger = {config.ledger!r}: make its folder first")
    else:
        log.warning("privacy.shared.ledger: %s is not there: it begins with nothing spent", path)
    return account
