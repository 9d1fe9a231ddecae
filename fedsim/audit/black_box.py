"""`fedsim audit CONFIG.toml --black-box`: canary users with texts; losses of the final model.

The run treats canaries like all other users: it reads their texts from its store, selects examples,
computes and clips their updates. The attacker sees only the losses of their texts under the initial
and the final model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedsim.audit.canaries import flip_coins
from fedsim.audit.f_dp import bound_in_family, own_family
from fedsim.audit.one_run import CONFIDENCE, OneRunBound, bound_from_canaries
from fedsim.audit.real_run import COIN_SEED, COINS, LOW, UNSERVED, RunAudit, check, told
from fedsim.audit.text_canaries import add_users, copies, draw_texts
from fedsim.config import Config
from fedsim.data.store import Indices
from fedsim.errors import ConfigError
from fedsim.evaluation.scoring import batches_by_length, score_padded
from fedsim.grids.build import build_executor
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, default_device, load_materials
from fedsim.plan import RoundPlan
from fedsim.planner.variants import tried
from fedsim.runner.launch import open_grid
from fedsim.runner.progress import CountProgress
from fedsim.runner.training import train
from fedsim.state import ServerState
from fedsim.tensors import Tensors
from fedsim.utils.files import cache_dir

Method = Literal["f-dp", "steinke"]


SHARES = (0.1, 0.2)
"""Shares of the canaries to guess. There are fewer than for updates, so each test has a larger part
of the error: canaries with texts are only hundreds, and stand out less."""

ASSUMPTIONS = (
    COINS,
    "The attacker of this audit makes up the canaries' texts, and sees only the losses of these "
    "texts under the initial and the final model.",
)
IN_FAMILY = (
    "Bounds by f-DP (Mahloujifar et al. 2025): the p-value tests the claimed trade-off curve. The "
    "lower bound on ε also assumes that the run is the claimed mechanism with an unknown noise "
    "multiplier."
)


@dataclass(frozen=True, eq=False)
class Attack:
    """The attacker's scores after one training, and the coins to guess.

    Attributes:
        config: config of the run.
        plan: plan of its rounds, with real users only.
        delta: δ of the claim.
        scores: (canaries,), decrease of the loss of each canary's text in nats, computed without
            the coins.
        included: (canaries,) bool, the coins.
    """

    config: Config
    plan: RoundPlan
    delta: float
    scores: npt.NDArray[np.float64]
    included: npt.NDArray[np.bool_]

    def bound(self, method: Method) -> tuple[OneRunBound, float | None]:
        """Return the lower bound on ε and, by f-DP, the p-value of the claimed curve."""
        if method == "steinke":
            return (
                bound_from_canaries(self.scores, self.included, delta=self.delta, shares=SHARES),
                None,
            )
        plan, rounds = self.plan, self.config.strategy.rounds
        return bound_in_family(
            self.scores,
            self.included,
            own_family(plan.cost, rounds, plan.relation, self.delta),
            delta=self.delta,
            shares=SHARES,
        )


def audit_black_box(
    config: Config,
    num_canaries: int,
    *,
    method: Method = "f-dp",
) -> RunAudit:
    """Train once with canary users, and bound ε by losses of the final model.

    Args:
        config: config of a private run with Poisson, balanced or cyclic sampling.
        num_canaries: number of canary users, at least 2; about half of them take part.
        method: method of the bound, "steinke" (`one_run`) or "f-dp" (`f_dp`); choose it in advance.

    Raises:
        ConfigError: see `attack`.
        DivergedError: the training gave no finite model.
    """
    done = attack(config, num_canaries)
    bound, p_value = done.bound(method)
    perfect = replace(done, scores=done.included.astype(np.float64))
    best, least = perfect.bound(method)
    audit = told(config, done.plan, (bound, best), int(done.included.sum()))
    return replace(
        audit,
        could_refute=audit.could_refute or (least is not None and least < 1.0 - CONFIDENCE),
        attack="the final model's losses",
        method=method,
        p_value=p_value,
        assumptions=(*ASSUMPTIONS, *([IN_FAMILY] if method == "f-dp" else []), LOW, UNSERVED),
    )


def attack(config: Config, num_canaries: int, coin_seed: int = COIN_SEED) -> Attack:
    """Train once with canaries and score them; see `audit_black_box`.

    Canaries that the split holds out (`data.held_out_users`) do not take part, whatever their
    coins. The bound is then weaker.

    Raises:
        ConfigError: see `audit_run` and `draw_texts`; or the config has texts with several owners,
            or `data.canaries`.
        DivergedError: the training gave no finite model.
    """
    materials, plan, delta = check(config, num_canaries)
    if config.data.canaries is not None or config.data.co_owned:
        key = "owners_column" if config.data.co_owned else "canaries"
        raise ConfigError(
            f"data.{key}: --black-box adds its own canary users, with one owner per text; remove it"
        )
    length = materials.store.manifest["sequence_length"]
    texts = draw_texts(materials.model, num_canaries, length, coin_seed)
    included = flip_coins(num_canaries, coin_seed)
    final = train_with(config, materials, plan, texts, included)
    scores = losses_fallen(materials.model, final, texts)
    return Attack(config, plan, delta, scores, included)


def train_with(
    config: Config,
    materials: Materials,
    plan: RoundPlan,
    texts: Indices,
    included: npt.NDArray[np.bool_],
) -> Tensors:
    """Return the parameters after the run's rounds, with the included canaries as users.

    Rate, denominator, noise and cost come from the plan. They do not depend on the canaries,
    because users are drawn independently and the size of the population is declared.
    """
    rounds = config.strategy.rounds
    device = default_device(config.executor.gpus_per_worker)
    start = materials.model.initial_parameters()
    base = cache_dir() / "audits"  # private text stays in the cache folder
    base.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=base) as folder:
        store = Path(folder) / "store"
        add_users(materials, texts, included, copies(config), store)
        planted = _reading(config, plan, store)
        with_canaries = load_materials(
            planted.seed, planted.data, planted.model, device, materials.seed
        )
        # `tried` silences a warning: the canaries make the population differ from the declared one.
        full = tried(planted, with_canaries)
        with open_grid(config.executor) as grid, CountProgress("audit", rounds) as bar:
            plan = replace(plan, pool=full.pool, addresses=full.addresses, owners=full.owners)
            executor = build_executor(planted, with_canaries, plan, grid, device)
            state = train(ServerState(0, start), plan, executor, rounds, on_round=bar.advance)
    return state.model


def _reading(config: Config, plan: RoundPlan, store: Path) -> Config:
    """Return the config with the store as its source, and the population size without canaries."""
    read = {"source": str(store), "recipe": None, "preparation": (), "cutting": "split"}
    key = f"declared_num_{plan.unit}s"
    declared = getattr(config.privacy, key) or len(plan.pool)
    return config.model_copy(
        update={
            "data": config.data.model_copy(update=read),
            "privacy": config.privacy.model_copy(update={key: declared}),
        }
    )


def losses_fallen(model: LanguageModel, final: Tensors, texts: Indices) -> npt.NDArray[np.float64]:
    """Return the decrease of each text's loss through training, in nats, (texts,)."""
    start = model.initial_parameters()
    return _losses(model, start, texts) - _losses(model, final, texts)


def _losses(model: LanguageModel, parameters: Tensors, texts: Indices) -> npt.NDArray[np.float64]:
    on_device = {name: value.to(model.device) for name, value in parameters.items()}
    lengths = np.full(len(texts), texts.shape[1])
    nats = np.zeros(len(texts))
    for places in batches_by_length(lengths, model.vocabulary_size):
        nats[places] = score_padded(model, on_device, texts[places], lengths[places])[0]
    return nats
