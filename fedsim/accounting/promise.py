"""privacy.json: the privacy statement beside a model's weights, and its verification.

    format        3
    statement     the privacy statement as a sentence
    epsilon       null without a finite guarantee
    delta, unit, relation, accountant, noise, hypothetical
    sampled       "users" or "examples": the unit of sampling
    releases      a list of {cost, rounds}: sampler, noise multiplier and units per user of a round
    assumptions   sentences on the assumptions of the guarantee
    software      the version of fedsim that computed ε
    trade_off     bounds on any attacker: `TradeOff.to_json` without the curve's points; null
                  without a finite guarantee
    weights       SHA-256 (hex) of each file of weights in the folder, by its name

The file is not signed. `verify` recomputes ε from the releases and compares the weights.
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
"""Start of the assumption on the initial model, which quotes that model's privacy statement."""
TOGETHER = "The ε is of this run by itself, composed tightly: "
"""Start of the assumption on the budget of all runs that share a ledger."""

_FORMAT = 3
_POINTS = ("false_positive_rates", "true_positive_rates")  # points of a plot
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_ROUNDING = 1e-6  # relative tolerance, for other versions of numpy and scipy


def promise(
    folder: Path,
    terms: PrivacyTerms,
    costs: Composition,
    relation: Relation,
    assumptions: tuple[str, ...],
) -> dict[str, Any]:
    """Return the content of privacy.json.

    Args:
        folder: folder of the weights.
        terms: terms of the privacy statement.
        costs: costs of all releases, each with its rounds; empty without a guarantee.
        relation: relation of `terms`.
        assumptions: sentences on the assumptions of the guarantee.
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
        ConfigError: the file is missing or has another format; the message names the file.
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
    """Return the costs in a privacy.json, each with its rounds."""
    return [(RoundCost.from_json(one["cost"]), int(one["rounds"])) for one in content["releases"]]


def verify(folder: Path) -> dict[str, Any]:
    """Verify a folder's privacy.json: recompute ε, compare the weights, and return the content.

    Raises:
        ConfigError: the file is missing, the stated ε is below the cost of the releases, or the
            weights changed; the message names the difference.
    """
    content, path = read_promise(folder), folder / NAME
    wrong = (ValueError, TypeError, KeyError, OverflowError)
    with about(f"{path}: cannot be recomputed: ", wrong):
        stated, delta, accountant = (content[key] for key in ("epsilon", "delta", "accountant"))
        computed, weights = 0.0, content["weights"]
        if stated is not None:
            relation = Relation(content["relation"])
            computed = epsilon_of_composition(releases_of(content), delta, accountant, relation)
        kept = stated is None or computed <= stated * (1.0 + _ROUNDING)
    if not kept:
        raise ConfigError(f"{path}: epsilon = {stated!r}: its releases cost {computed:.6g}")
    present = _weights(folder)
    changed = sorted(
        name for name in {*present, *weights} if present.get(name) != weights.get(name)
    )
    if changed:
        raise ConfigError(f"{folder / changed[0]}: was changed: {NAME} is for other weights")
    return content


def origin(content: dict[str, Any]) -> str:
    """Return the sentence on the initial model, with that model's own privacy statement."""
    return " ".join(text for text in content["assumptions"] if text.startswith(ORIGIN))
