"""A ledger that several runs on the same people share: together they keep one budget."""

from __future__ import annotations

import json
import logging
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.accounting.accountants import choose, epsilon_of_composition
from fedsim.accounting.budget import Budget
from fedsim.accounting.events import Composition, RoundCost, costs_from_json, costs_to_json, merged
from fedsim.accounting.ledger import Ledger, Releases
from fedsim.accounting.privacy_filter import RenyiFilter, best_order
from fedsim.config import Config, SharedLedgerConfig
from fedsim.errors import ConfigError, SharedBudgetSpentError, about
from fedsim.materials import materials_of
from fedsim.plan import RoundPlan
from fedsim.sampling import Relation
from fedsim.strategy import build_plan
from fedsim.utils.files import write_atomically
from fedsim.utils.json_text import read_json
from fedsim.utils.locks import locked, refuse_without, wait

log = logging.getLogger("fedsim")

_VERSION = 2
_KEYS = {"version", "epsilon", "delta", "relation", "order", "registered", "ledger"}


@dataclass(frozen=True)
class SharedLedger:
    """What a ledger file holds.

    Attributes:
        epsilon: the budget of all releases together.
        delta: at which it is computed.
        relation: the neighbouring relation that all runs have.
        order: of the Rényi filter, fixed before the first release; None where there is no filter
            and only what is registered may be released.
        registered: what was fixed before the first release: costs, each with its rounds.
        ledger: every release of every run; a seeded one that two runs repeat counts once.
    """

    epsilon: float
    delta: float
    relation: Relation
    order: float | None = None
    registered: tuple[tuple[RoundCost, int], ...] = ()
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def filter(self) -> RenyiFilter | None:
        """The rule for what was chosen after looking, if that is the rule."""
        if self.order is None:
            return None
        return RenyiFilter(self.epsilon, self.delta, self.relation, self.order)

    @property
    def terms(self) -> tuple[float, float, Relation]:
        """What all runs must state alike."""
        return self.epsilon, self.delta, self.relation

    @property
    def as_registered(self) -> bool:
        """Whether every release has a place of its own among what was registered.

        Places differ by their costs alone. In whatever order they are taken, and even if
        which of them stay empty is decided after looking, the releases are a post-processing of all
        registered mechanisms, made at once.
        """
        places = dict(self.registered)
        return all(count <= places.get(cost, 0) for cost, count in self.ledger.costs)

    @property
    def keeps_budget(self) -> bool:
        """Whether the rule of this file allows what the ledger holds."""
        rule = self.filter
        return self.as_registered if rule is None else rule.pays_for(self.ledger.costs)

    def registering(self, planned: Composition) -> SharedLedger:
        """Return the file with more releases registered, and the rule that follows from all.

        Where neither the filter nor the tight composition pays for everything, the last of what
        is planned is cut down to what the tight composition pays for.

        Args:
            planned: costs with their rounds, nothing of it released, fixed before any release.

        Raises:
            ValueError: something was released before: what is planned now may depend on it.
        """
        if self.ledger.items:
            raise ValueError("registering: the ledger holds releases; only a filter pays for more")
        asked = merged([*self.registered, *planned])
        order = best_order(*self.terms, asked)
        filtered = replace(self, registered=asked, order=order)
        rule = filtered.filter
        if rule is not None and rule.pays_for(asked):
            return filtered
        fits = self.registered
        for cost, rounds in planned:
            affordable = self._tight(fits, cost, rounds)
            if affordable is None:  # no accountant composes these: the filter alone can
                return replace(filtered, registered=())
            fits = merged([*fits, (cost, affordable)])
        return replace(self, registered=fits, order=None)

    def _tight(self, fixed: Composition, cost: RoundCost, rounds: int) -> int | None:
        ledger = Ledger(tuple(Releases(0, count, each, "registered") for each, count in fixed))
        try:
            choose([each for each, _ in (*fixed, (cost, rounds))], None, self.relation)
        except ConfigError:
            return None
        budget = Budget(self.epsilon, self.delta, None, self.relation)
        return budget.affordable(ledger, cost, rounds)

    def tight(self, costs: Composition) -> float | None:
        """Return ε of costs fixed in advance; None where no accountant composes them."""
        try:
            return epsilon_of_composition(costs, self.delta, None, self.relation)
        except ConfigError:
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {
            "version": _VERSION,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation.value,
            "order": self.order,
            "registered": costs_to_json(self.registered),
            "ledger": self.ledger.to_json(),
        }


def read_shared(path: Path) -> SharedLedger:
    """Read a shared ledger.

    Raises:
        ConfigError: unreadable, of another version, or not what fedsim writes. Such a file must
            stop a run: it cannot be taken for an empty one.
    """
    with about(f"shared ledger {path}: cannot be read: ", (OSError, ValueError)):
        data = read_json(path)
    version = data.get("version") if isinstance(data, Mapping) else None
    if isinstance(data, Mapping) and "releases" in data:
        raise ConfigError(
            f"shared ledger {path}: is the ledger of one run, whose ε is in its report.json; give "
            "a file that runs share, or to begin one a name that is not there yet"
        )
    if type(version) is not int or version != _VERSION or set(data) != _KEYS:
        raise ConfigError(f"shared ledger {path}: not one that this fedsim reads (version 2)")
    epsilon, delta = data["epsilon"], data["delta"]
    if not (_is_number(epsilon) and epsilon > 0.0 and _is_number(delta) and 0.0 < delta < 1.0):
        raise ConfigError(f"shared ledger {path}: epsilon = {epsilon!r}, delta = {delta!r}")
    try:
        relation = Relation(data["relation"])
    except ValueError:
        raise ConfigError(f"shared ledger {path}: relation = {data['relation']!r}") from None
    ledger = Ledger.from_json(data["ledger"])
    order = data["order"]
    if not (order is None or (_is_number(order) and order > 1.0)):
        raise ConfigError(f"shared ledger {path}: order = {order!r}")
    wrong = ConfigError(f"shared ledger {path}: registered = {data['registered']!r}")
    where = f"shared ledger {path}: registered"
    registered = merged(costs_from_json(data["registered"], wrong, where))
    return SharedLedger(epsilon, delta, relation, order, registered, ledger)


def _is_number(value: object) -> bool:
    # Compared, since `math.isfinite` falls over an integer of hundreds of digits.
    most = sys.float_info.max
    return isinstance(value, int | float) and type(value) is not bool and abs(value) <= most


def register_together(configs: Sequence[Config]) -> None:
    """Register what these runs will release, ledger by ledger.

    Nothing is done for a run without a ledger, or alone in one: it registers itself. A config
    whose plan cannot be built, or that its ledger refuses, is left out: its run says why. So is a
    secure run that counts its users when it begins.

    Args:
        configs: of runs of which none looks at another's outcome.
    """
    together: dict[Path, list[Config]] = {}
    for config in configs:
        if config.privacy.shared is not None:
            file = Path(config.privacy.shared.ledger).expanduser().resolve()
            together.setdefault(file, []).append(config)
    for sharing in together.values():
        if len(sharing) > 1:
            _register(sharing)


def _register(configs: Sequence[Config]) -> None:
    account: SharedAccount | None = None
    planned: list[tuple[RoundCost, int]] = []
    for config in configs:
        if not _known_beforehand(config):
            continue
        try:
            plan = build_plan(config, materials_of(config))
            own = shared_account(config.privacy.shared, plan)
        except Exception:  # noqa: S112  (the run itself will say what is wrong; the others go on)
            continue
        if own is not None and (account is None or own.terms == account.terms):
            account = account or own
            planned += [(plan.cost, config.strategy.rounds), *plan.scores_after(0)]
    if account is not None:
        account.register(planned)


def _known_beforehand(config: Config) -> bool:
    """Whether a run's cost is known before its secret split is drawn.

    Where users, canaries or examples are held out at random, or of texts with several owners those
    are kept that a secret order says, and their number is not declared, a secure run counts who is
    left when it begins: it registers itself then.
    """
    privacy, data = config.privacy, config.data
    declared = privacy.declared_num_users is not None
    if config.strategy.batch_size is not None:
        declared = privacy.declared_num_examples is not None
    held_out = data.held_out_users > 0.0 or data.held_out_examples > 0.0
    drawn = held_out or data.canaries is not None or data.co_owned
    return privacy.noise == "seeded" or declared or not drawn


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

    def others(self, own: Ledger) -> Composition:
        """Return what the file holds beside a run's own: costs with their rounds, or runs."""
        counts = Counter(dict(self._read().ledger.costs)) - Counter(dict(own.costs))
        return [(cost, count // (cost.run_rounds or 1)) for cost, count in counts.items()]

    def check_holds(self, own: Ledger) -> None:
        """Raise `ConfigError` unless the file holds all that a resumed run has released.

        Args:
            own: the run's own ledger. A release is charged here before it is charged there.
        """
        self._check_holds(own, self._read() if self.path.exists() else None)

    def _check_holds(self, own: Ledger, shared: SharedLedger | None) -> None:
        if missing := own.beyond(shared.ledger if shared else Ledger()):
            raise ConfigError(
                f"privacy.shared.ledger = {str(self.path)!r}: lacks {missing} releases of "
                "this run; resume it with the ledger that it was begun with, from the folder that "
                "it was begun in if the path is relative"
            )

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

    def charge(
        self,
        round: int,
        cost: RoundCost,
        release: str,
        ahead: int,
        *,
        own: Ledger,
        beside: Composition = (),
    ) -> None:
        """Charge one release, on disk when this returns, or refuse it and charge nothing.

        Processes that share the file wait for each other. The first release of all registers what
        its run plans, unless it stands registered with other runs.

        Args:
            round: the round.
            cost: of the release.
            release: its id; a seeded one that stands in the ledger already costs nothing.
            ahead: how many releases like it the run still plans, this one counted.
            own: what the run has released before.
            beside: other releases that the run still plans.

        Raises:
            SharedBudgetSpentError: it would exceed the budget.
            ConfigError: the file cannot be read, has another budget, lacks releases of this run
                (it was removed or replaced meanwhile), or cannot be locked.
        """
        with self._locked():
            shared = self._read()
            self._check_holds(own, shared)
            charged = shared.ledger.charge(round, cost, release)
            if charged is shared.ledger:
                return
            if not shared.ledger.items and cost not in dict(shared.registered):
                shared = shared.registering([(cost, ahead), *beside])
            written = replace(shared, ledger=charged)
            if not written.keeps_budget:
                raise SharedBudgetSpentError(
                    f"round {round}: this release would exceed its budget, with what the ledger "
                    f"{self.path} holds already{self._why(shared)}; fedsim account ledger "
                    f"{self.path} says what is spent, and by what"
                )
            self._write(written)

    def affordable(
        self, cost: RoundCost, rounds: int, release: str, beside: Composition = ()
    ) -> int:
        """Return how many of a run's rounds it would pay for now, `rounds` at most.

        Nothing is charged. Arguments are those of `charge`, before the first round.
        """
        shared = self._read()
        if not shared.ledger.items and cost not in dict(shared.registered):
            shared = shared.registering([(cost, rounds), *beside])

        def too_many(count: int) -> bool:
            charged = shared.ledger
            for round in range(count):
                charged = charged.charge(round, cost, release)
            return not replace(shared, ledger=charged).keeps_budget

        if not too_many(rounds):
            return rounds
        return max(0, bisect_left(range(rounds), True, key=too_many) - 1)

    @staticmethod
    def _why(shared: SharedLedger) -> str:
        if shared.order is not None or not shared.registered:
            return ""
        return (
            ": all of its budget is set aside for what was registered before its first release; a "
            "ledger whose first runs have a smaller privacy.epsilon has room for later ones"
        )

    def _locked(self) -> AbstractContextManager[int]:
        lock = self.path.with_name(f".{self.path.name}.lock")
        return locked(lock, wait, without=refuse_without)

    def _write(self, shared: SharedLedger) -> None:
        write_atomically(self.path, json.dumps(shared.to_json(), indent=1) + "\n")

    def _read(self) -> SharedLedger:
        if not self.path.exists():
            return self.terms
        if self.path.stat().st_nlink > 1:  # a write would replace this name, and leave the others
            raise ConfigError(
                f"privacy.shared.ledger = {str(self.path)!r}: the file has another name (a hard "
                "link), under which runs would have a budget of their own; keep one name"
            )
        shared = read_shared(self.path)
        if shared.terms != self.terms.terms:
            raise ConfigError(
                f"privacy.shared: {self.path} keeps ε = {shared.epsilon:g} at δ = {shared.delta:g} "
                f"under {shared.relation.value}, this config says {self.terms.epsilon:g}, "
                f"{self.terms.delta:g}, {self.terms.relation.value}; runs that share a ledger "
                "share its budget"
            )
        return shared


def shared_account(config: SharedLedgerConfig | None, plan: RoundPlan) -> SharedAccount | None:
    """Return a run's access to the ledger that its config names, or None; write nothing.

    Raises:
        ConfigError: the file cannot be read or has another budget; or a sampler without a
            guarantee.
    """
    if config is None:
        return None
    if plan.noise_multiplier == 0.0:
        raise ConfigError(
            "privacy.shared: this run has no noise, and no budget pays for that; remove it, or "
            "take a strategy with noise and privacy.epsilon or privacy.noise_multiplier"
        )
    if not plan.sampling.guaranteed:
        raise ConfigError(
            f"privacy.shared: {plan.sampling.kind!r} sampling gives no guarantee, only a "
            "hypothetical ε; it cannot be added to those of other runs"
        )
    return open_ledger(config, choose([plan.cost], plan.accountant, plan.relation)[1])


def open_ledger(config: SharedLedgerConfig, relation: Relation) -> SharedAccount:
    """Return access to a ledger for releases under a relation; write nothing.

    Raises:
        ConfigError: no file can be there, or it cannot be read or has another budget.
    """
    terms = SharedLedger(config.epsilon, config.delta, relation)
    # By its one true name: a link would have a lock of its own, and be replaced by the first write.
    path = Path(config.ledger).expanduser().resolve()
    taken = next((parent for parent in path.parents if parent.exists()), path.parent)
    if path.is_dir() or not taken.is_dir():
        what = "it is a folder" if path.is_dir() else f"{taken} is a file"
        raise ConfigError(
            f"privacy.shared.ledger = {config.ledger!r}: {what}; give a file that is a ledger or "
            "not there yet"
        )
    account = SharedAccount(path, terms)
    account.check()
    if not path.exists():
        log.warning("privacy.shared.ledger: %s is not there: it begins with nothing spent", path)
    return account
