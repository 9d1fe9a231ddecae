"""A ledger that several runs on the same people share, with one (ε, δ) for all of them.

A Rényi filter at one order (`fedsim.accounting.privacy_filter`) allows or refuses each release. It
also covers runs that were chosen after looking at earlier runs. A lock file protects the ledger.
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
class SharedLedger(RenyiFilter):
    """The content of a ledger file: the rule that allows or refuses a release, and the releases.

    Attributes:
        ledger: all releases of all runs.
    """

    ledger: Ledger = field(default_factory=Ledger)

    @property
    def terms(self) -> tuple[float, float, Relation]:
        """ε, δ and relation, which must be equal in all runs."""
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
        ConfigError: the file cannot be read, or is no shared ledger of this version. It must not
            count as an empty ledger.
    """
    try:
        data = read_json(path)
        if data.get("version") != _VERSION or "order" not in data:
            raise ValueError(
                "not a shared ledger of this fedsim; give a shared ledger, or a new name to begin "
                "one"
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
        path: path of the file; the first release creates it.
        epsilon: shared ε in this run's config.
        delta: shared δ in this run's config.
        relation: neighbouring relation of this run.
    """

    path: Path
    epsilon: float
    delta: float
    relation: Relation

    def read(self, planned: Composition = ()) -> SharedLedger:
        """Return the content of the file; if there is none, an empty ledger.

        A new ledger gets the best order for the planned releases.

        Raises:
            ConfigError: the file cannot be read, or has another budget.
        """
        terms = self.epsilon, self.delta, self.relation
        if not self.path.exists():
            return SharedLedger(*terms, best_order(*terms, planned))
        shared = read_shared(self.path)
        if shared.terms != terms:
            raise ConfigError(
                f"privacy.shared: {self.path} has ε = {shared.epsilon:g} at δ = {shared.delta:g} "
                f"under {shared.relation.value}, this config has {self.epsilon:g}, "
                f"{self.delta:g}, {self.relation.value}; runs that share a ledger share its budget"
            )
        return shared

    def check_holds(self, own: Ledger) -> None:
        """Raise `ConfigError` if the run has charged releases but the file has none of them.

        If the file were missing or replaced, the budget would be spent a second time.
        """
        ids = {item.release for item in own.items}
        held = self.read().ledger.items if self.path.exists() else ()
        if ids and not any(item.release in ids for item in held):
            raise ConfigError(
                f"privacy.shared.ledger = {str(self.path)!r}: holds no release of this run, which "
                "has charged releases to a file of this name; restore that file, or resume from "
                "the folder in which the run began"
            )

    def charge(
        self,
        round: int,
        cost: RoundCost,
        release: str,
        planned: Composition = (),
        own: Ledger = _NOTHING,
    ) -> None:
        """Charge one release in the file, or refuse it and charge nothing.

        Processes that share the file wait for each other. The charge is on disk at return.

        Args:
            round: the round.
            cost: cost of the release.
            release: id of the release; a repeated release that is already charged costs nothing.
            planned: planned releases of the run; a new ledger's order is the best one for these.
            own: releases that this run has already charged: see `check_holds`.

        Raises:
            SharedBudgetSpentError: the release would exceed the budget.
            ConfigError: the file cannot be read or locked, has another budget, or lacks `own`.
        """
        with locked(self.path.with_name(f".{self.path.name}.lock")):
            self.check_holds(own)
            shared = self.read(planned or [(cost, 1)])
            charged = shared.ledger.charge(round, cost, release)
            if charged is shared.ledger:
                return
            if not shared.pays_for(charged.costs):
                raise SharedBudgetSpentError(
                    f"round {round}: this release would exceed the shared budget in the ledger "
                    f"{self.path}; `fedsim account ledger {self.path}` lists the releases and "
                    "their shares"
                )
            text = json.dumps(replace(shared, ledger=charged).to_json(), indent=1) + "\n"
            write_atomically(self.path, text)


def shared_account(config: SharedLedgerConfig | None, plan: RoundPlan) -> SharedAccount | None:
    """Return a run's access to its shared ledger; write nothing.

    Returns None without `[privacy.shared]`, and for a seeded run, which charges no budget.

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
            "privacy.shared: this run has no privacy guarantee, so it cannot share a budget; "
            "remove privacy.shared, or take a strategy with noise and a sampler with a guarantee"
        )
    relation = choose([plan.cost], plan.accountant, plan.relation)[1]
    # Resolve links: a link would have its own lock, and the first write would replace the link.
    path = Path(config.ledger).expanduser().resolve()
    account = SharedAccount(path, config.epsilon, config.delta, relation)
    if path.exists():
        account.read()
    elif not path.parent.is_dir():
        raise ConfigError(f"privacy.shared.ledger = {config.ledger!r}: make its folder first")
    else:
        log.warning("privacy.shared.ledger: %s does not exist; a new one begins with ε = 0", path)
    return account
