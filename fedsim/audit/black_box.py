"""`fedsim audit CONFIG.toml --black-box`: canary users among the texts, losses of the final model.

The canaries are users like all others to the run: it reads their texts from its store, chooses of
their examples, computes and clips their updates. The attacker sees nothing but the loss of texts
under the model that training started from and under the one that it gave away.
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
from fedsim.audit.real_run import COINS, LOW, UNSERVED, RunAudit, check, told
from fedsim.audit.text_canaries import add_users, copies, draw_texts
from fedsim.config import Config
from fedsim.data.store import Indices
from fedsim.errors import ConfigError
from fedsim.evaluation.scoring import batches_by_length, score_padded
from fedsim.grids.executor import build_executor
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
"""Of the canaries, where both sides are guessed: fewer ways than with gradients, so fewer to pay
for. Canaries of text are hundreds, and stand out less."""

ASSUMPTIONS = (
    COINS,
    "The attacker of this audit sees the losses of the canaries' texts under the starting and the "
    "final model alone, and makes the texts up.",
)
IN_FAMILY = (
    "Bounds by f-DP (Mahloujifar et al. 2025): the p-value is of the claimed trade-off curve "
    "itself. The lower bound on ε also takes the run to be the claimed mechanism with some noise "
    "multiplier, the true one unknown."
)


@dataclass(frozen=True, eq=False)
class Attack:
    """What the attacker has after one training, and the coins that it has to guess.

    Attributes:
        config: of the run.
        plan: of its rounds, over the real users alone.
        delta: of the claim.
        scores: (canaries,), by how many nats the loss of each canary's text fell; made without a
            look at the coins.
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
    coin_seed: int = 0,
) -> RunAudit:
    """Train once as the config says, with canary users, and bound ε by losses of the final model.

    Args:
        config: of a private run with Poisson, balanced or cyclic sampling.
        num_canaries: users whose coins are flipped; about half take part. At least 2.
        method: of the bound, chosen before: "steinke" (`one_run`) or "f-dp" (`f_dp`).
        coin_seed: of canaries and coins: never the run's own randomness.

    Raises:
        ConfigError: as `attack`.
        DivergedError: the training gave no finite model.
    """
    done = attack(config, num_canaries, coin_seed)
    bound, p_value = done.bound(method)
    perfect = replace(done, scores=done.included.astype(np.float64))
    best, least = perfect.bound(method)
    audit = told(config, done.plan, (bound, best), int(done.included.sum()), coin_seed)
    return replace(
        audit,
        could_refute=audit.could_refute or (least is not None and least < 1.0 - CONFIDENCE),
        attack="the final model's losses",
        method=method,
        p_value=p_value,
        assumptions=(*ASSUMPTIONS, *([IN_FAMILY] if method == "f-dp" else []), LOW, UNSERVED),
    )


def attack(config: Config, num_canaries: int, coin_seed: int) -> Attack:
    """Train once with canaries and score them, see `audit_black_box`.

    A canary that the split holds out (`data.held_out_users`) is not trained on, whatever its coin
    said: the bound is then weaker.

    Raises:
        ConfigError: as `audit_run` and `draw_texts`, texts with several owners, Kandpal's canaries.
        DivergedError: the training gave no finite model.
    """
    materials, plan, delta = check(config, num_canaries)
    if config.data.canaries is not None or config.data.co_owned:
        key = "owners_column" if config.data.co_owned else "canaries"
        raise ConfigError(
            f"data.{key}: --black-box adds users of its own, whose texts have one owner; remove it"
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
    """Return the parameters after the run's rounds with the included canaries among its users.

    Rate, denominator, noise and cost are the plan's: users draw alone, and with a declared size of
    the population nothing of these depends on who is there.
    """
    rounds = config.strategy.rounds
    device = default_device(config.executor.gpus_per_worker)
    start = materials.model.initial_parameters()
    base = cache_dir() / "audits"  # the text stays where it is kept already
    base.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=base) as folder:
        store = Path(folder) / "store"
        add_users(materials, texts, included, copies(config), store)
        planted = _reading(config, plan, store)
        found = load_materials(planted.seed, planted.data, planted.model, device, materials.seed)
        there = tried(planted, found)  # far from a declared number, by the canaries
        with open_grid(config.executor) as grid, CountProgress("audit", rounds) as bar:
            plan = replace(plan, pool=there.pool, addresses=there.addresses, owners=there.owners)
            executor = build_executor(planted, found, plan, grid, device)
            state = train(ServerState(0, start), plan, executor, rounds, on_round=bar.advance)
    return state.model


def _reading(config: Config, plan: RoundPlan, store: Path) -> Config:
    """Return the config with the store as its source, and the population as it was without it."""
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
    """Return by how many nats training lowered the loss of each text, (texts,)."""
    start = model.initial_parameters()
    return _losses(model, start, texts) - _losses(model, final, texts)


def _losses(model: LanguageModel, parameters: Tensors, texts: Indices) -> npt.NDArray[np.float64]:
    on_device = {name: value.to(model.device) for name, value in parameters.items()}
    lengths = np.full(len(texts), texts.shape[1])
    nats = np.zeros(len(texts))
    for places in batches_by_length(lengths, model.vocabulary_size):
        nats[places] = score_padded(model, on_device, texts[places], lengths[places])[0]
    return nats
