"""A strategy for Flower apps: user-level DP-FedAvg with their own grid and ClientApp."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy

from fedsim.accounting.budget import Budget
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.statement import PrivacyTerms
from fedsim.errors import BudgetSpentError, about
from fedsim.estimators import FixedDenominator
from fedsim.grids.executor import wait_for_nodes
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.round import run_round
from fedsim.sampling import PoissonSampling
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from fedsim.strategies.flower.app_plan import (
    NodePlan,
    clip_of,
    is_count,
    noise_of,
    parameters_of,
    require,
)
from fedsim.strategies.flower.replies import Replies

log = logging.getLogger("flwr")  # the log of the Flower app


class DPFedAvg(strategy.Strategy):
    """FedAvg with user-level differential privacy (McMahan et al. 2018, Algorithm 1).

    Use it instead of `flwr.serverapp.strategy.FedAvg`; the ClientApp stays unchanged. One node is
    one user. In each round every connected node flips its own coin, and the drawn nodes train. An
    update is the returned parameters minus the sent ones; with a NaN or an infinity it counts as
    zero. Updates are clipped and added with weight 1: a client's "num-examples" would be private
    and unbounded. The sum is divided by the *expected* cohort size, and Gaussian noise is added.
    `run_round` does all this, as in every run of fedsim.

    If a reply is missing, failed or repeated, the round fails without a release, for two reasons.
    Whether a node replies may depend on the load that another node puts on the grid, so one user
    could move a sum over the replies by more than the clip norm. And the sum would not be over the
    cohort whose sampling is accounted.

    The guarantee covers the model of every round. It does not cover other data from clients: train
    metrics are dropped, and evaluation metrics pass as Flower averages them. So evaluation by
    clients is off unless `fraction_evaluate` is set. The log contains cohort sizes: keep it
    private. The guarantee assumes that whether a node is connected does not depend on another
    user's data.

    Args:
        num_users: declared number of users, a public number, never counted.
        cohort_size: expected users per round, at most `num_users`; the sampling probability is
            cohort_size / num_users.
        l2_clip_norm: clip norm of a whole update, or norms by layer (a parameter's name without its
            last part, see `fedsim.clipping.layer_of`).
        delta: δ of the guarantee, in (0, 1); well below 1 / num_users.
        noise_multiplier: noise standard deviation over sensitivity; 0 for no noise and no
            guarantee. Give either this or `epsilon`.
        epsilon: ε over `num_rounds` rounds; the noise is calibrated to it.
        num_rounds: number of rounds that `epsilon` pays for, over all calls of `start`; only with
            `epsilon`.
        noise: "secure" draws coins and noise from the operating system; "seeded" repeats them,
            for simulations that protect nobody.
        seed: seed of "seeded" noise.
        server_learning_rate: server learning rate; 1 is plain averaging.
        fraction_evaluate: share of the connected nodes that evaluate after each round.

    Raises:
        ConfigError: a value is out of range, or no noise reaches (ε, δ).
    """

    def __init__(
        self,
        *,
        num_users: int,
        cohort_size: float,
        l2_clip_norm: float | Mapping[str, float],
        delta: float,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        num_rounds: int | None = None,
        noise: Literal["secure", "seeded"] = "secure",
        seed: int | None = None,
        server_learning_rate: float = 1.0,
        fraction_evaluate: float = 0.0,
    ) -> None:
        fits = 0.0 <= fraction_evaluate <= 1.0
        require(fits, "fraction_evaluate", fraction_evaluate, "a number in [0, 1]")
        require(0.0 < delta < 1.0, "delta", delta, "a number in (0, 1), such as 1e-5")
        require(is_count(num_users), "num_users", num_users, "an integer >= 1")
        fits = 0.0 < cohort_size <= num_users
        require(fits, "cohort_size", cohort_size, f"a number in (0, num_users = {num_users}]")
        coins, rate = PoissonSampling(cohort_size / num_users), server_learning_rate
        multiplier = noise_of(coins, noise_multiplier, epsilon, delta, num_rounds)
        require(0.0 < rate < math.inf, "server_learning_rate", rate, "a finite number > 0")
        require(noise in ("secure", "seeded"), "noise", noise, '"secure" or "seeded"')
        fits = type(seed) is int if noise == "seeded" else seed is None
        require(fits, "seed", seed, 'an integer with noise = "seeded", else leave it out')
        clip = clip_of(l2_clip_norm)
        with about(""):
            self._plan: RoundPlan = NodePlan(
                strategy="flower",
                unit="user",
                pool=np.arange(1),  # until a round has its nodes
                sampling=coins,
                task=TaskSpec(name="flower-client-app"),
                clip=clip,
                estimator=FixedDenominator(coins.probability, float(num_users)),
                noise_multiplier=multiplier,
                units_per_user=1,
                optimizer=ServerOptimizer("sgd", rate),
                seed=seed or 0,
                entropy=noise,
            )
        self._delta = delta
        self._budget = None if epsilon is None else Budget(epsilon, delta)
        # The round counts on over several calls of `start`, so no noise is drawn twice.
        self._state = ServerState(round=0, parameters={})
        self._nodes: list[int] = []
        self._evaluation = strategy.FedAvg(fraction_evaluate=fraction_evaluate)

    @property
    def plan(self) -> RoundPlan:
        """The plan of a round: sampling, clip, denominator, noise, cost; its pool is the nodes."""
        return self._plan

    @property
    def ledger(self) -> Ledger:
        """Every release so far."""
        return self._state.ledger

    def privacy_statement(self) -> str:
        """Return the privacy statement of all rounds so far."""
        plan = self._plan
        private = plan.noise_multiplier > 0.0
        sentence = PrivacyTerms.of(
            plan.cost,
            "users",
            rounds=self.ledger.num_releases,
            delta=self._delta if private else None,
            epsilon=self.ledger.epsilon(self._delta) if private else math.inf,
            relation=plan.relation,
            noise=plan.entropy,
        ).sentence()
        if not private:
            return sentence
        return (
            f"{sentence} One node is one user; the number of users was declared. Metrics that "
            "clients send, and the log, are not protected."
        )

    def summary(self) -> None:
        """Log sampling, clip and noise."""
        plan, users = self._plan, self._plan.sampling.in_words("users")
        log.info("%s with probability %g", users, plan.sampling.probability)
        log.info("clip bound %g, noise standard deviation %g", plan.clip.bound, plan.noise_stddev)

    def start(  # noqa: PLR0917  (the signature is Flower's)
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> strategy.Result:
        """Run `num_rounds` rounds, as `Strategy.start` does.

        Raises:
            BudgetSpentError: epsilon does not pay for all rounds; raised before the first.
            ConfigError: an array is not floating point, not finite, or has no clip norm.
            RuntimeError: a round failed, as a reply is missing, an error, repeated or misshapen.
        """
        self._check_budget(num_rounds)
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def _check_budget(self, num_rounds: int) -> None:
        if self._budget is None:
            return
        paid = self._budget.affordable(self.ledger, self._plan.cost, num_rounds)
        if paid < num_rounds:
            raise BudgetSpentError(
                f"num_rounds = {num_rounds}: ε = {self._budget.epsilon:g} at "
                f"δ = {self._delta:g} pays for {paid} more; give at most {paid}"
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Flip a coin for every connected node; return messages to the drawn nodes, maybe none."""
        state, plan = self._state, self._plan
        self._check_budget(1)  # before any client trains
        self._state = dataclasses.replace(state, parameters=parameters_of(arrays, plan.clip))
        self._nodes = wait_for_nodes(grid, patience=math.inf)  # as FedAvg does
        self._plan = dataclasses.replace(plan, pool=np.arange(len(self._nodes)))
        cohort = self._plan.cohort(state.round)
        log.info("round %d: drew %d of %d nodes", server_round, len(cohort), len(self._nodes))
        config["server-round"] = server_round  # as FedAvg does
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, self._nodes[key], MessageType.TRAIN) for key in cohort]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Run the round on the replies; return the new arrays and no metrics."""
        if not self._nodes:
            raise RuntimeError(f"round {server_round}: no nodes; call configure_train before it")
        executor = Replies(replies, self._nodes)
        self._state, record = run_round(self._state, self._plan, executor)
        self._nodes = []
        if record.num_non_finite:
            log.warning(
                "round %d: %d of %d updates had a NaN or an infinity and counted as zero",
                server_round,
                record.num_non_finite,
                record.num_units,
            )
        return ArrayRecord(dict(self._state.parameters)), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask `fraction_evaluate` of the nodes to evaluate; the guarantee does not cover it."""
        return self._evaluation.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics as FedAvg does; the guarantee does not cover them."""
        return self._evaluation.aggregate_evaluate(server_round, replies)
