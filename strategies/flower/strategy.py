"""A strategy for Flower apps: user-level DP-FedAvg over their own grid and ClientApp."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
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

log = logging.getLogger("flwr")  # the log of the app that this is part of


class DPFedAvg(strategy.Strategy):
    """FedAvg with user-level differential privacy (McMahan et al. 2018, Algorithm 1).

    Takes the place of `flwr.serverapp.strategy.FedAvg`; the ClientApp stays as it is. One node is
    one user. Each round every connected node flips its own coin; the drawn ones train; each
    update (parameters returned minus parameters sent) counts as zero if it has a NaN or an
    infinity, is clipped, and all are added at weight 1: a client's "num-examples" would be
    private, and unbounded. The sum over the *expected* cohort size, plus Gaussian noise, moves
    the model. `run_round` does all that, as in every run of fedsim.

    A missing, failed or repeated reply fails the round, and nothing is released: whether one
    node answers may depend on how busy another keeps the grid, so that a user could move a sum
    over those who answered by more than the clip norm; and it would be the sum of another cohort
    than the one whose sampling is accounted.

    Covered is the model of every round. Not covered is whatever else clients send: train metrics
    are dropped, evaluation metrics are passed on as Flower averages them, so evaluation by
    clients is off unless `fraction_evaluate` is set. The log tells cohort sizes: keep it private.
    The guarantee supposes that who is connected does not depend on another user's data.

    Args:
        num_users: how many users there are, declared: a public number, never counted.
        cohort_size: expected users a round, at most `num_users`; the sampling probability is
            cohort_size / num_users.
        l2_clip_norm: of a whole update, or one for each layer (a parameter's name without its
            last part, see `fedsim.clipping.layer_of`).
        delta: of the guarantee, in (0, 1); well below 1 / num_users.
        noise_multiplier: noise standard deviation over sensitivity; 0 for no noise and no
            guarantee. Either this or `epsilon`.
        epsilon: to keep over `num_rounds` rounds; the noise is calibrated to it.
        num_rounds: rounds that `epsilon` pays for, over all calls of `start`; only with it.
        noise: "secure" draws coins and noise from the operating system; "seeded" repeats them,
            for simulations that protect nobody.
        seed: of "seeded".
        server_learning_rate: 1 is plain averaging.
        fraction_evaluate: of the connected nodes, asked to evaluate after each round.

    Raises:
        ConfigError: a value out of range, or an (ε, δ) that no noise can give.
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
        # Its round, not Flower's: a second `start` goes on, so no noise is ever drawn twice.
        self._state = ServerState(round=0, parameters={})
        self._nodes: list[int] = []
        self._evaluation = strategy.FedAvg(fraction_evaluate=fraction_evaluate)

    @property
    def plan(self) -> RoundPlan:
        """What a round does: sampling, clip, denominator, noise, cost (its pool: the nodes)."""
        return self._plan

    @property
    def ledger(self) -> Ledger:
        """Every release so far."""
        return self._state.ledger

    def privacy_statement(self) -> str:
        """Say in words what all rounds so far promise to whom, and what that rests on."""
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
        """Log what each round does."""
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
            BudgetSpentError: epsilon does not pay for that many; before the first of them.
            ConfigError: arrays that cannot be averaged: not floating, not finite, no clip norm.
            RuntimeError: a round failed: a reply is missing, an error, repeated or misshapen.
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
        """Flip a coin for every connected node; return the messages to those drawn, maybe none."""
        state, plan = self._state, self._plan
        self._check_budget(1)  # before any client is asked
        self._state = dataclasses.replace(state, parameters=parameters_of(arrays, plan.clip))
        self._nodes = _connected(grid)
        self._plan = dataclasses.replace(plan, pool=np.arange(len(self._nodes)))
        cohort = self._plan.cohort(state.round)
        log.info("round %d: drew %d of %d nodes", server_round, len(cohort), len(self._nodes))
        config["server-round"] = server_round  # as FedAvg does
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, self._nodes[key], MessageType.TRAIN) for key in cohort]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Carry out the round on the replies; return the new arrays, and none of the metrics."""
        if not self._nodes:
            raise RuntimeError(f"round {server_round}: no nodes; call configure_train before it")
        executor = Replies(replies, self._nodes)
        self._state, record = run_round(self._state, self._plan, executor)
        self._nodes = []  # its replies are used up
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
        """Do as FedAvg does: ask `fraction_evaluate` of the nodes. Not covered by the guarantee."""
        return self._evaluation.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics as FedAvg does. Not covered by the guarantee."""
        return self._evaluation.aggregate_evaluate(server_round, replies)


def _connected(grid: Grid) -> list[int]:
    """Return the connected nodes, ascending; wait for the first, as FedAvg does."""
    while not (nodes := sorted(grid.get_node_ids())):
        log.info("waiting for a node to connect")
        time.sleep(1.0)
    return nodes
