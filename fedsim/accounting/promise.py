"""privacy.json: a model's ε with all that it rests on, written beside the weights, and its check.

    format        3
    statement     the promise as a sentence
    epsilon       null where there is no finite guarantee
    delta, unit, relation, accountant, noise, hypothetical
    sampled       "users" or "examples": what one coin was flipped on
    releases      a list of {cost, rounds}: sampler, noise multiplier and units a user of a round
    assumptions   sentences that the guarantee rests on
    software      what computed it
    trade_off     what an attacker can make of it: `TradeOff.to_json` without the curve's points;
                  null where there is no finite guarantee
    weights       SHA-256 (hex) of each file of weights beside it, by its name
    digests       SHA-256 (hex) of the JSON of each of the above

A digest shows that a field was changed by hand; it is no signature. That ε follows from the
releases is computed again, so a promise that is better than its releases is refused whatever its
digests say.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedsim.accounting import PROMISE
from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.events import Composition, costs_from_json, costs_to_json
from fedsim.accounting.rounding import text_up
from fedsim.accounting.statement import PrivacyTerms
from fedsim.accounting.trade_off import TradeOff, attacker_text
from fedsim.errors import ConfigError, about
from fedsim.sampling import Relation
from fedsim.utils.files import file_digest
from fedsim.utils.json_text import digest, read_json

NAME = PROMISE
ORIGIN = "Vocabulary and starting point: "
"""How the assumption begins that says where training started, and quotes that start's promise."""
TOGETHER = "The ε is of this run by itself, composed tightly: "
"""How the assumption begins that names the budget of all runs that share a ledger."""

_FORMAT = 3
_KEYS = (
    *("format", "statement", "epsilon", "delta", "unit", "relation", "accountant", "noise"),
    *("hypothetical", "sampled", "releases", "assumptions", "software", "weights", "trade_off"),
)
_WHERE = ("false_positive_rate", "priors", "epsilon")  # of what a trade-off has bounds on
_POINTS = ("false_positive_rates", "true_positive_rates")  # of a picture
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_BOOLEAN = "hypothetical"  # the one of these that is true or false
_VALUES: dict[str, tuple[object, ...]] = {
    "unit": ("user", "hypothetical user", "owner", "hypothetical owner"),
    "noise": ("secure", "seeded", None),
    _BOOLEAN: (True, False),
    "sampled": ("users", "examples"),
}
_NO_NOISE = re.compile(r"No privacy guarantee: the releases of \d+ rounds? have no finite ε\.")
_NO_EPSILON = re.compile(r"No privacy guarantee: the ([\w-]+) accountant certifies no finite ε .*")
_PROMISING = re.compile(
    r"(?:[εϵ𝜀𝜖]|epsilon)\s*[=:≈≤<]|differential privacy under|For an attacker", re.IGNORECASE
)
_MARKUP = re.compile(r"<[^>]*>|[*_`~\\$]|[\u00ad\u200b-\u200f\u2060\ufeff]")
_ROUNDING = 1e-6  # relative: other versions of numpy and scipy


def promise(
    folder: Path,
    terms: PrivacyTerms,
    costs: Composition,
    relation: Relation,
    assumptions: tuple[str, ...],
) -> dict[str, Any]:
    """Return the content of privacy.json.

    Args:
        folder: where the weights are.
        terms: what is promised.
        costs: of all releases, each with its rounds; empty where there is no guarantee.
        relation: of `terms`.
        assumptions: sentences that the guarantee rests on.
    """
    finite = terms.delta is not None and terms.epsilon < float("inf")
    content: dict[str, Any] = {
        "format": _FORMAT,
        "statement": terms.sentence(),
        "epsilon": terms.epsilon if finite else None,
        "delta": terms.delta,
        "unit": terms.unit,
        "relation": relation.value,
        "accountant": terms.accountant if finite else None,
        "noise": terms.noise if finite else None,
        "hypothetical": finite and not terms.guaranteed,
        "sampled": "examples" if "example" in terms.sampler else "users",
        "releases": costs_to_json(costs),
        "assumptions": list(assumptions),
        "software": f"fedsim-dp {version('fedsim-dp')}",
        "weights": _weights(folder),
        "trade_off": _trade_off(costs, terms.delta, terms.accountant, relation) if finite else None,
    }
    return {**content, "digests": {key: digest(content[key]) for key in _KEYS}}


def _trade_off(
    costs: Composition, delta: float | None, accountant: str, relation: Relation
) -> dict[str, Any] | None:
    curve = None if delta is None else TradeOff.of(costs, delta, accountant, relation)
    if curve is None:
        return None
    return {key: value for key, value in curve.to_json().items() if key not in _POINTS}


def _weights(folder: Path) -> dict[str, str]:
    paths = sorted(p for p in folder.iterdir() if p.suffix in _WEIGHTS and p.is_file())
    return {path.name: file_digest(path) for path in paths}


def verify(folder: Path) -> dict[str, Any]:
    """Check a folder's privacy.json and return it.

    Raises:
        ConfigError: there is none, it is of another format, a field was edited, or ε is not that
            of the releases; the message names the field.
    """
    path = folder / NAME
    try:
        content = read_json(path)
    except OSError as error:
        inside = [name for name in ("adapter", "model") if (folder / name / NAME).exists()]
        hint = "".join(f"; give {folder / name}" for name in inside[:1])
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{hint}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    found = content.get("format") if isinstance(content, Mapping) else None
    if type(found) is not int or found != _FORMAT:
        raise ConfigError(f"{path}: not a promise of format {_FORMAT}, which this fedsim reads")
    digests = content.get("digests")
    if set(content) != {*_KEYS, "digests"} or not isinstance(digests, Mapping):
        raise ConfigError(f"{path}: its fields are not those of format {found}")
    for key in _KEYS:
        if digests.get(key) != digest(content[key]):
            raise ConfigError(f"{path}: {key} = {_shown(content[key])}: was edited")
    _check_values(path, content)
    try:
        if content["epsilon"] is not None:
            _check_epsilon(path, content)
        else:
            _check_nothing(path, content)
        _check_trade_off(path, content)
    except OverflowError:  # an integer that no float holds
        raise ConfigError(f"{path}: a number has more digits than fedsim writes") from None
    _check_card(folder, content)
    _check_weights(folder, content["weights"])
    return dict(content)


def _check_values(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse words that fedsim does not write."""
    for key, allowed in _VALUES.items():
        if content[key] not in allowed or isinstance(content[key], bool) is not (key == _BOOLEAN):
            raise ConfigError(f"{path}: {key} = {_shown(content[key])}: not what fedsim writes")
    accountant = content["accountant"]
    if content["epsilon"] is not None and not (isinstance(accountant, str) and accountant):
        raise ConfigError(f"{path}: accountant = {_shown(accountant)}: not what fedsim writes")
    assumptions = content["assumptions"]
    if not isinstance(assumptions, list) or not all(isinstance(a, str) for a in assumptions):
        raise ConfigError(f"{path}: assumptions = {_shown(assumptions)}: not what fedsim writes")


def origin(content: Mapping[str, Any]) -> str:
    """Return what a promise says of the starting point, with the promise that that has itself."""
    said = [text for text in content["assumptions"] if text.startswith(ORIGIN)]
    return " ".join(said)


def _check_weights(folder: Path, weights: object) -> None:
    """Refuse weights that are not those that the promise was written beside."""
    there = _weights(folder)
    if not isinstance(weights, Mapping) or weights.keys() != there.keys():
        raise ConfigError(
            f"{folder}: the files of weights are {sorted(there)}, and {NAME} is of "
            f"{_shown(sorted(weights) if isinstance(weights, Mapping) else weights)}"
        )
    for name, found in there.items():
        if weights[name] != found:
            raise ConfigError(f"{folder / name}: was changed: {NAME} is of other weights")


def _check_trade_off(path: Path, content: Mapping[str, Any]) -> None:
    """Compute again what an attacker can make of it: no number may be less than that."""
    stated, known = content["trade_off"], None
    if content["epsilon"] is not None:
        costs = _costs(path, content["releases"])
        relation = Relation(content["relation"])
        known = _trade_off(costs, content["delta"], content["accountant"], relation)
    if not _at_least(stated, known):
        raise ConfigError(
            f"{path}: trade_off = {_shown(stated)}: its releases give {_shown(known)}"
        )


def _at_least(stated: object, known: object, key: str = "") -> bool:
    """Whether two values have one form, and no bound of the first is less, but for rounding.

    Numbers that say where a bound stands (`_WHERE`) are equal.
    """
    match stated, known:
        case dict(), dict():
            return stated.keys() == known.keys() and all(
                _at_least(stated[name], known[name], name) for name in known
            )
        case list(), list():
            return len(stated) == len(known) and all(
                _at_least(one, other, key) for one, other in zip(stated, known, strict=True)
            )
        case ((int() | float()), float()) if not isinstance(stated, bool) and key not in _WHERE:
            most = math.inf if key in ("mu", "regret") else 1.0  # all else bounds a rate
            possible = math.isfinite(stated) and stated <= most
            return possible and known <= stated * (1.0 + _ROUNDING) + 1e-12
        case _:
            return stated == known and isinstance(stated, bool) is isinstance(known, bool)


def _check_nothing(path: Path, content: Mapping[str, Any]) -> None:
    """Compute again the statement of a file that promises nothing."""
    said = content["statement"]
    wrong = ConfigError(f"{path}: statement: promises something, and epsilon is null")
    if not isinstance(said, str):
        raise wrong
    if _NO_NOISE.fullmatch(said):
        return
    named = _NO_EPSILON.fullmatch(said)
    if not named:
        raise wrong
    costs = _costs(path, content["releases"])
    with about(f"{path}: cannot be computed again: ", (ValueError, TypeError)):
        terms = _terms(content, costs, math.inf, named[1], Relation(content["relation"]))
    if not _is_of(terms, said):
        raise wrong


def _terms(
    content: Mapping[str, Any],
    costs: Composition,
    epsilon: float,
    accountant: str,
    relation: Relation,
) -> PrivacyTerms:
    return PrivacyTerms.of(
        costs[0][0],
        content["sampled"],
        others=costs[1:],
        rounds=sum(rounds for _, rounds in costs),
        delta=content["delta"],
        epsilon=epsilon,
        accountant=accountant,
        relation=relation,
        noise=content["noise"],
        unit=content["unit"],
    )


def _check_card(folder: Path, content: Mapping[str, Any]) -> None:
    """Refuse a card that promises something else; it may say more, and it may be missing."""
    path, statement = folder / "README.md", content["statement"]
    assumptions: list[str] = content["assumptions"]
    with about(f"{path}: cannot be read: ", (OSError, ValueError)):
        card = path.read_text(encoding="utf-8") if path.exists() else statement
    own = card
    for said in assumptions:
        budget = said.startswith(TOGETHER) and len(_PROMISING.findall(said)) == 1
        if said.startswith(ORIGIN) or budget:
            own = own.replace(f"- {said}\n", "")
    rest = own.replace(statement, "")
    attacker = attacker_text(content)
    if attacker is not None and path.exists():
        if attacker not in rest:
            raise ConfigError(
                f"{path}: was edited: it does not say what {NAME} says of an attacker"
            )
        rest = rest.replace(attacker, "")
    if rest == own or _PROMISING.search(_MARKUP.sub("", html.unescape(rest))):
        raise ConfigError(f"{path}: was edited: its promise is not the statement of {NAME}")
    if path.exists() and (gone := [said for said in assumptions if f"- {said}" not in card]):
        raise ConfigError(f"{path}: was edited: {_shown(gone[0])} of {NAME} is not in it")


def _check_epsilon(path: Path, content: Mapping[str, Any]) -> None:
    """Compute ε and the statement again."""
    costs = _costs(path, content["releases"])
    stated, delta, accountant = content["epsilon"], content["delta"], content["accountant"]
    with about(f"{path}: cannot be computed again: ", (ValueError, TypeError)):
        relation = Relation(content["relation"])
        found = epsilon_of_composition(costs, delta, accountant, relation)
    by_graph = (content["unit"].endswith("owner"), content["sampled"])
    if (relation is Relation.FIXED_GRAPH) != by_graph[0] or by_graph == (True, "users"):
        raise ConfigError(
            f"{path}: unit = {_shown(content['unit'])}, sampled = {_shown(content['sampled'])}: "
            f"not what fedsim promises under {relation.value}"
        )
    if type(stated) not in (int, float) or not found <= stated * (1.0 + _ROUNDING):
        raise ConfigError(f"{path}: epsilon = {stated!r}: its releases cost {found:.6g}")
    terms = _terms(content, costs, stated, accountant, relation)
    if not _is_of(terms, content["statement"]):
        raise ConfigError(f"{path}: statement: is not that of its releases: {terms.sentence()}")
    if content["hypothetical"] is terms.guaranteed:
        raise ConfigError(f"{path}: hypothetical = {content['hypothetical']}: {terms.sampler}")


def _is_of(terms: PrivacyTerms, said: object) -> bool:
    """Whether a statement is that of the terms; earlier ones had δ rounded to the nearest."""
    delta, sentence = terms.delta or 0.0, terms.sentence()
    return said in (sentence, sentence.replace(f"δ = {text_up(delta)}", f"δ = {delta:g}"))


def _costs(path: Path, releases: object) -> Composition:
    wrong = ConfigError(f"{path}: releases = {_shown(releases)}: not what fedsim writes")
    costs = costs_from_json(releases, wrong, f"{path}: releases")
    if not costs:
        raise wrong
    return costs


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"
