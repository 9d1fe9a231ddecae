"""A ledger that several runs on the same people share: together they keep one budget.

Two rules can stand behind that budget, and the file says which: `order`. What was registered before
the first release was fixed in advance, and composes tightly; a later run may have been chosen by
somebody who saw the earlier models, and for such runs only a privacy filter is proved
(`accounting.privacy_filter`). Where the filter pays for all that was registered, it is the rule,
and other runs may follow. Where it does not, the tight composition may still do: then nothing but
what was registered is ever released. Which of the two is settled before the first release, of
public numbers, since the choice must not depend on a release.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.accounting.accountants import choose, epsilon_of_composition
from fedsim.accounting.budget import Budget
from fedsim.accounting.events import Composition, RoundCost
from fedsim.accounting.ledger import Ledger, Releases
from fedsim.accounting.privacy_filter import RenyiFilter, best_order
from fedsim.accounting.relations import Relation
from fedsim.errors import ConfigError
from fedsim.json_text import read_json

_VERSION = 2
_KEYS = {"version", "epsilon", "delta", "relation", "order", "registered", "ledger"}
_KEYS_OF_1 = _KEYS - {"order", "registered"}


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

        Places are told apart by their costs alone. In whatever order they are taken, and whoever
        decides after looking which of them stay empty, the releases are a post-processing of all
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
            "registered": [
                {"cost": cost.to_json(), "rounds": rounds} for cost, rounds in self.registered
            ],
            "ledger": self.ledger.to_json(),
        }


def merged(costs: Composition) -> tuple[tuple[RoundCost, int], ...]:
    """Return each cost once, with all its rounds, in order of first appearance; none with 0."""
    counts: Counter[RoundCost] = Counter()
    for cost, rounds in costs:
        counts[cost] += rounds
    return tuple((cost, rounds) for cost, rounds in counts.items() if rounds)


def read_shared(path: Path) -> SharedLedger:
    """Read a shared ledger.

    In a file of version 1 nothing is registered: its runs count as chosen after looking. Its order
    is that of plain Gaussian releases, which depends on the budget alone.

    Raises:
        ConfigError: unreadable, of another version, or not what fedsim writes. Such a file must
            stop a run: it cannot be taken for an empty one.
    """
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"shared ledger {path}: cannot be read: {error}") from None
    keys = {1: _KEYS_OF_1, _VERSION: _KEYS}
    version = data.get("version") if isinstance(data, Mapping) else None
    if type(version) is not int or version not in keys or set(data) != keys[version]:
        raise ConfigError(f"shared ledger {path}: not one that this fedsim reads (version 1 or 2)")
    epsilon, delta = data["epsilon"], data["delta"]
    if not (_is_number(epsilon) and epsilon > 0.0 and _is_number(delta) and 0.0 < delta < 1.0):
        raise ConfigError(f"shared ledger {path}: epsilon = {epsilon!r}, delta = {delta!r}")
    try:
        relation = Relation(data["relation"])
    except ValueError:
        raise ConfigError(f"shared ledger {path}: relation = {data['relation']!r}") from None
    ledger = Ledger.from_json(data["ledger"])
    if version == 1:
        return SharedLedger(
            epsilon, delta, relation, best_order(epsilon, delta, relation), (), ledger
        )
    order = data["order"]
    if not (order is None or (_is_number(order) and order > 1.0)):
        raise ConfigError(f"shared ledger {path}: order = {order!r}")
    registered = _registered(data["registered"], path)
    return SharedLedger(epsilon, delta, relation, order, registered, ledger)


def _registered(data: object, path: Path) -> tuple[tuple[RoundCost, int], ...]:
    wrong = ConfigError(f"shared ledger {path}: registered = {data!r}")
    if not isinstance(data, list):
        raise wrong
    for item in data:
        if not isinstance(item, Mapping) or set(item) != {"cost", "rounds"}:
            raise wrong
        if type(item["rounds"]) is not int or item["rounds"] < 1:
            raise wrong
    try:
        return merged([(RoundCost.from_json(item["cost"]), item["rounds"]) for item in data])
    except ConfigError as error:
        raise ConfigError(f"shared ledger {path}: registered: {error}") from None


def _is_number(value: object) -> bool:
    # Compared, since `math.isfinite` falls over an integer of hundreds of digits.
    return isinstance(value, int | float) and type(value) is not bool and abs(value) < math.inf
