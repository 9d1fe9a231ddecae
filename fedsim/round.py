"""One round of private training. Read this first."""

from __future__ import annotations

from dataclasses import replace

from fedsim.execution import Executor
from fedsim.plan import RoundPlan
from fedsim.state import RoundRecord, ServerState


def run_round(
    state: ServerState, plan: RoundPlan, executor: Executor, *, keep: bool = True
) -> tuple[ServerState, RoundRecord]:
    """Carry out one round of Algorithm 1 or 2 of Charles et al. 2024 and return the next state.

    0. Look up: the clip of this round, in the state; everything below follows from it.
    1. Select: the plan's sampling draws the cohort from its pool.
    2. Compute, clip, sum: the executor returns Σ w·clip(update) over the cohort.
    3. Account: charge the ledger, before there is a release.
    4. Estimate: divide by the plan's denominator.
    5. Noise: Gaussian, with a scale from the plan's clip and estimator, also for an empty cohort.
       A noise matrix subtracts part of the noise of earlier rounds.
    6. Step: the clip policy chooses the next clip; an adaptive one uses a noisy count, which the
       charge covers. The server optimizer takes the release as its gradient.

    Noise and step are computed where the sum is, here or on the workers. This function does not
    depend on the strategy. If a shard cannot be computed, it passes on the executor's error and
    releases nothing. `keep`: see `ServerOptimizer.step`.
    """
    plan = plan.at(state)
    cohort = plan.cohort(state.round)
    total = executor.clipped_sum(state.parameters, cohort, plan.clip, state.round)
    ledger = state.ledger.charge(state.round, plan.cost, plan.draws.release_id)
    factor = plan.estimator.factor(total)
    earlier = plan.earlier_noise(state.round, total)
    noise = plan.draws.noise(state.round)
    release = total.release_(factor, plan.noise_stddev, noise, earlier)  # takes the sum's memory
    next_clip = plan.next_clip(state, total)
    record = RoundRecord(
        num_units=total.num_units,
        num_gradients=total.num_gradients,
        num_non_finite=total.num_non_finite,
        num_clipped=total.num_units - total.num_unclipped,
        train_loss=total.loss / total.num_units if total.num_units else None,
        estimate_norm=release.estimate_norm,
        release_over_noise=plan.over_noise(release, state.round),
        clip_norm=plan.moving_clip_norm,
        released_share=next_clip.released_share,
    )
    del total  # the step frees the release, one tensor after the other
    stepped = plan.optimizer.advance(state, release, plan.released_stddev(state.round), keep=keep)
    after = replace(stepped, round=state.round + 1, ledger=ledger, clip_scale=next_clip.scale)
    return after, record
