"""privacy.json: a model's ε with all that it rests on, written beside the weights, and its check.

    format        3
    statement     the promise as a sentence
    epsilon       null where there is no finite guarantee
    delta, unit, relation, accountant, noise, hypothetical
    sampled       "users" or "examples": the units that one coin was flipped on
    releases      a list of {cost, rounds}: sampler, noise multiplier and units a user of a round
    assumptions   sentences that the guarantee rests on
    software      the version that computed it
    trade_off     bounds on any attacker: `TradeOff.to_json` without the curve's points; null
                  where there is no finite guarantee
    weights       SHA-256 (hex) of each file of weights beside it, by its name

The file is not signed. `verify` computes ε from the releases again and compares the weights.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedsim.accounting import PROMISE
from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.events import Composition, RoundCost
from fedsim.accounting.statement import PrivacyTerms
from fedsim.accounting.trade_off import TradeOff
from fedsim.errors import ConfigError, about
from fedsim.sampling import Relation
from fedsim.utils.files import file_digest
from fedsim.utils.json_text import read_json

NAME = PROMISE
ORIGIN = "Vocabulary and starting point: "
"""Beginning of the assumption that says where training started, and quotes the start's promise."""
TOGETHER = "The ε is of this run by itself, composed tightly: "
"""Beginning of the assumption that names the budget of all runs that share a ledger."""

_FORMAT = 3
_POINTS = ("false_positive_rates", "true_positive_rates")  # of a picture
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
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
        folder: of the weights.
        terms: of the promise.
        costs: of all releases, each with its rounds; empty where there is no guarantee.
        relation: of `terms`.
        assumptions: sentences that the guarantee rests on.
    """
    delta = terms.delta
    finite = delta is not None and terms.epsilon < float("inf")
    curve = None
    if delta is not None and finite:
        curve = TradeOff.of(costs, delta, terms.accountant, relation)
    bounds = {} if curve is None else curve.to_json()
    return {
        "format": _FORMAT,
        "statement": terms.sentence(),
        "epsilon": terms.epsilon if finite else None,
        "delta": delta,
        "unit": terms.unit,
        "relation": relation.value,
        "accountant": terms.accountant if finite else None,
        "noise": terms.noise if finite else None,
        "hypothetical": finite and not terms.guaranteed,
        "sampled": "examples" if "example" in terms.sampler else "users",
        "releases": [{"cost": cost.to_json(), "rounds": rounds} for cost, rounds in costs],
        "assumptions": list(assumptions),
        "software": f"fedsim-dp {version('fedsim-dp')}",
        "weights": _weights(folder),
        "trade_off": {key: bounds[key] for key in bounds if key not in _POINTS} or None,
    }


def _weights(folder: Path) -> dict[str, str]:
    paths = sorted(p for p in folder.iterdir() if p.suffix in _WEIGHTS and p.is_file())
    return {path.name: file_digest(path) for path in paths}


def read_promise(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's privacy.json, unchecked.

    Raises:
        ConfigError: there is no such file, or it is of another format; the message names it.
    """
    path = folder / NAME
    try:
        content: dict[str, Any] = read_json(path)
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r}; this fedsim reads {_FORMAT}")
    except OSError as error:
        inside = [name for name in ("adapter", "model") if (folder / name / NAME).exists()]
        hint = "".join(f"; give {folder / name}" for name in inside[:1])
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{hint}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: cannot be read: {error!r}") from None
    return content


def releases_of(content: dict[str, Any]) -> Composition:
    """Return the costs that a promise lists, each with its rounds."""
    return [(RoundCost.from_json(one["cost"]), int(one["rounds"])) for one in content["releases"]]


def verify(folder: Path) -> dict[str, Any]:
    """Compute ε from a folder's privacy.json again, compare the weights, and return the content.

    Raises:
        ConfigError: there is no such file, ε is smaller than its releases cost, or the weights are
            not those that it was written beside; the message names what differs.
    """
    content, path = read_promise(folder), folder / NAME
    wrong = (ValueError, TypeError, KeyError, OverflowError)
    with about(f"{path}: cannot be computed again: ", wrong):
        stated, delta, accountant = (content[key] for key in ("epsilon", "delta", "accountant"))
        found, weights = 0.0, content["weights"]
        if stated is not None:
            relation = Relation(content["relation"])
            found = epsilon_of_composition(releases_of(content), delta, accountant, relation)
        kept = stated is None or found <= stated * (1.0 + _ROUNDING)
    if not kept:
        raise ConfigError(f"{path}: epsilon = {stated!r}: its releases cost {found:.6g}")
    there = _weights(folder)
    changed = sorted(name for name in {*there, *weights} if there.get(name) != weights.get(name))
    if changed:
        raise ConfigError(f"{folder / changed[0]}: was changed: {NAME} is of other weights")
    return content


def origin(content: dict[str, Any]) -> str:
    """Return the sentence on the starting point, which quotes the promise that it has itself."""
    return " ".join(text for text in content["assumptions"] if text.startswith(ORIGIN))
