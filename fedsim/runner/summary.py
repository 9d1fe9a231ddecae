"""Build the report of a run from its config, materials, plan and last state."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import JsonValue

from fedsim.accounting.choice_of_delta import delta_sentence
from fedsim.accounting.promise import ORIGIN, TOGETHER
from fedsim.accounting.rounding import text_up
from fedsim.accounting.statement import PrivacyTerms, finite_or_none
from fedsim.accounting.trade_off import TradeOff
from fedsim.clip_policy import AdaptiveClip
from fedsim.clipping import NormalisedClip
from fedsim.config import Config, FedAvg
from fedsim.data.canaries import sentence as about_canaries
from fedsim.data.preparation.prepare import assumptions
from fedsim.errors import DivergedError, HaltedError, SharedBudgetSpentError
from fedsim.evaluation.generation import SAMPLE_TOKENS, SAMPLES, sample_texts
from fedsim.grids.sharding import chunk_tokens
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.report.schema import (
    Cost,
    DataSummary,
    HeldOut,
    ModelSummary,
    Privacy,
    Query,
    RoundMetrics,
    RoundSummary,
    RunReport,
    Samples,
    Scores,
    TradeOffBound,
    Utility,
)
from fedsim.runner.model_card import settings
from fedsim.runner.training import NOT_PAID_FOR
from fedsim.sampling import Relation, TruncatedPoissonSampling
from fedsim.seeding import is_score
from fedsim.state import ServerState
from fedsim.utils.json_text import flat
from fedsim.utils.machine import peak_memory_bytes

_PACKAGES = ("fedsim-dp", "torch", "transformers", "flwr", "dp-accounting", "numpy", "datasets")


def clip_facts(plan: RoundPlan, state: ServerState) -> dict[str, JsonValue]:
    """Return the first round's clip; if it changes, also its policy and its norm in `state`."""
    clip = plan.clip
    inner = clip.clip if isinstance(clip, NormalisedClip) else clip
    facts: dict[str, JsonValue] = {
        **inner.model_dump(mode="json"),
        "normalise": isinstance(clip, NormalisedClip),
        "bound": None if clip.kind == "none" else clip.bound,
    }
    if plan.clip_policy.constant:
        return facts
    return {
        **facts,
        **plan.clip_policy.describe(),
        "update_noise_multiplier": plan.update_noise_multiplier,
        "next_clip_norm": plan.at(state).clip.norm,
    }


def clip_sentences(plan: RoundPlan) -> tuple[str, ...]:
    """Return sentences on a clip that changes from round to round; () for a constant clip."""
    if plan.clip_policy.constant:
        return ()
    first = "The bound and the noise standard deviation given here are those of the first round."
    if not isinstance(plan.clip_policy, AdaptiveClip):
        return (f"The clip followed a schedule that does not depend on data. {first}",)
    return (
        "The clip followed a noisy count of the units within it, released each round and covered "
        f"by ε: noise multiplier {plan.update_noise_multiplier:.6g} on the estimate, with the "
        f"count's noise, costs as much as {plan.noise_multiplier:.6g} alone. clip_norm and "
        f"released_share in the metrics follow from these releases. {first}",
    )


def summarise(
    config: Config,
    materials: Materials,
    plan: RoundPlan,
    state: ServerState,
    lines: Sequence[RoundMetrics],
    *,
    final: Scores,
    title: str,
    seconds: float,
    ended: Exception | None = None,
    charged_until: int | None = None,
) -> RunReport:
    """Return the report of a run that ended in `state`.

    Args:
        config: config of the run.
        materials: model, texts and split of the run.
        plan: plan of each round.
        state: last state; the guarantee is computed from its ledger.
        lines: the metrics, from round 0.
        final: utility of the saved model, read back.
        title: name of the run folder.
        seconds: wall-clock time of training, evaluation and saving.
        ended: error that ended the run early. After the end of a shared budget the state's ledger
            has all planned rounds.
        charged_until: round up to which the ledger has all rounds, done or planned; None: the
            rounds done.
    """
    start = lines[0].held_out
    if start is None:
        raise ValueError("metrics: the line of round 0 has no held_out")
    model = _model(config, materials, state)
    diverged = str(ended) if isinstance(ended, DivergedError) else None
    cut_short = isinstance(ended, SharedBudgetSpentError)
    return RunReport(
        name=config.strategy.name,
        title=title,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        privacy=privacy_block(
            config,
            plan,
            state,
            " ".join([materials.model.origin, *materials.earlier_training]),
            materials.num_protected,
            earlier_training=materials.earlier_training,
            of_data=(
                *assumptions(
                    config.data.preparation,
                    materials.store.manifest["dropped"],
                    co_owned=config.data.co_owned,
                ),
                *about_canaries(config.data.canaries),
                *((NOT_PAID_FOR,) if diverged else ()),
                *_counted(state, cut_short, charged_until),
            ),
        ),
        utility=Utility(
            initial=Scores(**start.model_dump(), tokens=final.tokens, users=final.users),
            final=final,
            last=lines[-1].held_out_last,
        ),
        data=_data(config, materials, plan),
        model=model,
        cost=Cost(
            gradients=sum(line.gradients or 0 for line in lines),
            expected_gradients=expected_gradients(config, materials, plan) * state.round,
            seconds=seconds,
            peak_memory_bytes=peak_memory_bytes(),
            rounds=state.round,
            planned_rounds=config.strategy.rounds,
        ),
        samples=None if diverged else _samples(config, materials, state),
        private_scores=None if diverged or cut_short else lines[-1].private_scores,
        settings=flat(settings(config)) | plan.optimizer.reported(state, plan.noise_stddev),
        rounds=RoundSummary.of(lines, model.trainable_parameters),
        diverged=diverged,
        halted=str(ended) if isinstance(ended, HaltedError) else None,
        machine=_machine(config),
        versions={"python": platform.python_version()}
        | {name: version(name) for name in _PACKAGES},
    )


def _counted(state: ServerState, cut_short: bool, charged_until: int | None) -> tuple[str, ...]:
    """Return sentences for an ε that counts more rounds than the model was trained for."""
    releases, until = state.ledger.num_releases, charged_until or state.round
    scored = [item for item in state.ledger.items if is_score(item.release)]
    scores = len({at for item in scored for at in range(item.first_round, item.end)})
    sentences = []
    if cut_short:
        sentences.append(
            f"The shared ledger ended the run after {state.round} rounds. Other runs may have "
            f"spent its budget after looking at this run, so ε counts all {releases} releases, "
            "done or planned."
        )
    if (num_repeated := releases - scores - until) > 0:
        sentences.append(
            f"The run was interrupted and resumed: {num_repeated} of the {releases} releases were "
            "repeated with new noise. ε counts all of them. It assumes that the interrupt did not "
            "depend on the releases."
        )
    return tuple(sentences)


def as_held_out(scores: Scores) -> HeldOut:
    """Convert scores to the form of the metrics."""
    return HeldOut(**scores.model_dump(exclude={"tokens", "users"}))


def privacy_block(
    config: Config,
    plan: RoundPlan,
    state: ServerState,
    origin: str,
    num_users: int,
    *,
    earlier_training: tuple[str, ...] = (),
    of_data: tuple[str, ...] = (),
) -> Privacy:
    """Return the report's privacy block: ε from the ledger, everything else from the plan.

    Args:
        config: config of the run.
        plan: plan of each round.
        state: last state; its ledger holds all releases.
        origin: sentence on the public data behind the vocabulary and the starting model.
        num_users: number of users counted in the data, to judge δ if no number was declared.
        earlier_training: sentences on earlier training of the starting model.
        of_data: sentences on assumptions from the preparation of the data.
    """
    private = plan.noise_multiplier > 0.0
    terms = privacy_terms(config, plan, state)
    curve = None
    if terms.delta is not None and math.isfinite(terms.epsilon):
        curve = TradeOff.of(state.ledger.costs, terms.delta, terms.accountant, plan.relation)
    scores = sum(item.num_rounds for item in state.ledger.items if is_score(item.release))
    return Privacy(
        **{
            **terms.to_json(),
            "accountant": terms.accountant if private else None,
            "rounds": terms.rounds - scores,
        },
        scores=scores,
        epsilon=finite_or_none(terms.epsilon),
        clip=clip_facts(plan, state),
        estimator=dict(plan.estimator.describe()),
        noise_stddev=plan.fresh_noise_stddev,
        noise=plan.entropy if private else "none",
        assumptions=((*_assumptions(config, plan, origin, num_users), *of_data) if private else ()),
        hypothetical=private and not terms.guaranteed,
        earlier_training=earlier_training,
        statement=terms.sentence(),
        trade_off=None if curve is None else TradeOffBound(**curve.to_json()),
        queries=queries(config, plan, state),
    )


def privacy_terms(config: Config, plan: RoundPlan, state: ServerState) -> PrivacyTerms:
    """Return the terms of the guarantee, with ε from the ledger; without noise ε is inf."""
    private = plan.noise_multiplier > 0.0
    costs = state.ledger.costs if private and state.ledger.costs else [(plan.cost, 0)]
    terms = PrivacyTerms.of(
        costs[0][0],
        f"{plan.unit}s",
        others=costs[1:],
        rounds=state.ledger.num_releases if private else state.round,
        delta=config.privacy.delta if private else None,
        accountant=plan.accountant if private else None,
        relation=plan.relation,
        noise=plan.entropy,
        unit=config.data.unit,
    )
    if terms.delta is None:
        return terms
    epsilon = state.ledger.epsilon(terms.delta, terms.accountant, plan.relation)
    return replace(terms, epsilon=epsilon)


def queries(config: Config, plan: RoundPlan, state: ServerState) -> tuple[Query, ...]:
    """Return the queries of the run on private text, charged queries first.

    Args:
        config: config of the run.
        plan: plan of each round.
        state: last state; its ledger holds all charged releases.
    """
    charged: list[tuple[str, int | None, str]] = []
    if plan.noise_multiplier > 0.0:
        rounds = sum(item.num_rounds for item in state.ledger.items if not is_score(item.release))
        noise = f"noise multiplier {plan.cost.noise_multiplier:.5g}"
        included = "included in the cost above"
        charged.append(("the clipped sum of a round's units", rounds, noise))
        if isinstance(plan.clip_policy, AdaptiveClip):
            question = "the number of a round's units that the clip leaves unchanged"
            charged.append((question, rounds, included))
        charged += [(question, rounds, included) for question in plan.priced_questions]
        if plan.search is not None:
            charged.append(("the private score of each trial of the search", None, included))
            charged.append(("the trial with the best private score", 1, included))
        elif scores := state.ledger.num_releases - rounds:
            question = "held-out loss and accuracy, and the number of users, as private scores"
            noise = f"noise multiplier {plan.score_cost.noise_multiplier:.5g}"
            charged.append((question, scores, noise))
    evaluated = 1 + -(-state.round // config.training.evaluate_every)
    privacy, user = config.privacy, plan.unit == "user"
    declared = privacy.declared_num_users if user else privacy.declared_num_examples
    hidden = plan.relation is Relation.ADD_OR_REMOVE and declared is None
    free = [
        ("held-out loss, perplexity and accuracy", evaluated * bool(config.data.held_out_examples)),
        (
            "each round's number of units, clipped units and gradients, training loss and norm",
            state.round,
        ),
        ("the numbers of users, examples, tokens and dropped rows", 1),
        (
            f"the number of {plan.unit}s, for rates and denominator",
            int(hidden and plan.noise_multiplier > 0.0),
        ),
        ("the choice of settings, if it used results of earlier runs", None),
    ]
    simulated = "simulated: " * (plan.entropy == "seeded")
    guaranteed = plan.sampling.guaranteed
    rows = [
        *(
            (question, times, f"{simulated}{by}" if guaranteed else "only a hypothetical ε")
            for question, times, by in charged
        ),
        *((question, times, "not covered by ε") for question, times in free if times != 0),
    ]
    return tuple(
        Query(question=question, times=times, paid_by=by, covered=guaranteed and row < len(charged))
        for row, (question, times, by) in enumerate(rows)
    )


def expected_gradients(config: Config, materials: Materials, plan: RoundPlan) -> float:
    """Return the expected number of per-example gradients per round."""
    share = plan.sampling.probability
    if isinstance(plan.sampling, TruncatedPoissonSampling) and len(plan.pool):
        share = plan.sampling.expected_units(len(plan.pool)) / len(plan.pool)
    if plan.unit == "example":
        return share * len(plan.pool)
    strategy = config.strategy
    sizes = materials.split.user_sizes.clip(max=strategy.group_size)
    if strategy.selection == "random-chunk":
        longest = materials.store.manifest["sequence_length"]
        sizes = -(-chunk_tokens(materials, strategy.group_size) // longest)
    local = config.strategy.local
    epochs = local.epochs if isinstance(local, FedAvg) else 1
    return share * float(sizes.sum()) * epochs


_OTHERS = (
    "A conversation belongs only to its user: the guarantee does not cover other people who speak "
    "or are mentioned in it."
)


def _owners(config: Config) -> tuple[str, ...]:
    if config.data.co_owned:
        return (
            "Each identifier in the columns of users and owners is one person, and the data name "
            "all owners of each text.",
        )
    alone = "Each identifier in the user column is one person, and each record belongs to one user."
    return (alone,) if config.data.text_kind == "text" else (alone, _OTHERS)


def _made_up(config: Config) -> tuple[str, ...]:
    maker = config.data.made_up_by
    if maker is None:
        return ()
    return (
        f"Hypothetical users: a {maker} divided all rows into partitions. ε protects partitions, "
        "not the people who wrote the text.",
    )


def _assumptions(config: Config, plan: RoundPlan, origin: str, num_users: int) -> tuple[str, ...]:
    kept = (
        "Coins, noise, held-out split and selected examples were drawn from a secret outside of "
        "the run folder, in $FEDSIM_CACHE/seeds. A person who has this secret can subtract the "
        "noise: delete it when the run is done."
    )
    noise = (
        kept
        if plan.entropy == "secure" and plan.draws.repeat
        else "Coins and noise were drawn with keys from the operating system, which were not "
        "stored. The held-out split and the selected examples were drawn from a seed that is "
        "stored outside of the run folder."
        if plan.entropy == "secure"
        else "All draws follow from the run's seed, so that runs can be repeated and compared in "
        "pairs: ε is simulated, and this run gives no protection."
    )
    return (
        *_owners(config),
        *_made_up(config),
        *plan.assumptions,
        *clip_sentences(plan),
        noise,
        *_delta(config, plan.relation, num_users, plan.unit),
        *_shared(config),
        _SETTINGS if plan.search is None else _SEARCHED,
        f"{ORIGIN}{origin}",
        f"{_covered(plan)} The guarantee does not cover training losses, cohort sizes and other "
        "scores on held-out text in this report, which are computed on private text.",
        "Noise is added in float64, and the sum is rounded to a grid of at most 2^-16 of the "
        "noise's standard deviation; ε does not account for other effects of floating point.",
    )


def _covered(plan: RoundPlan) -> str:
    released = "the model and its private scores" if plan.score_rounds else "the model"
    if not plan.sampling.guaranteed:
        return f"This run gives no protection: the hypothetical ε would cover only {released}."
    if plan.entropy == "seeded":
        return f"This run gives no protection: with secret noise ε would cover only {released}."
    return f"The privacy guarantee covers only {released}."


_SETTINGS = (
    "Hyper-parameters (rounds, rates, sizes, clip, learning rate) count as public: ε does not "
    "cover a choice of them by results on the private data."
)
_SEARCHED = (
    "A search chose the settings among candidates that count as public. ε covers the search if "
    "its other runs and their number stay secret. ε does not cover other choices by results on the "
    "private data."
)


def _shared(config: Config) -> tuple[str, ...]:
    shared = config.privacy.shared
    if shared is None or config.privacy.noise == "seeded":
        return ("The ε is for this run alone; further runs on the same people add to it.",)
    return (
        f"{TOGETHER}its rounds were fixed in advance. All "
        f"runs that share its ledger together have ε = {text_up(shared.epsilon)} at δ = "
        f"{text_up(shared.delta)} for the same unit and relation. A privacy filter makes this hold "
        "even if runs were chosen after looking at other runs: see `fedsim account ledger "
        f"{Path(shared.ledger).name}`.",
    )


def delta_warnings(
    config: Config, relation: Relation, counted: int, sampled: str
) -> tuple[str, ...]:
    """Return a warning if δ is not below one over the number of users; else ().

    Args:
        config: config of the run.
        relation: neighbouring relation of the guarantee.
        counted: number of users, or owners, counted in the private data.
        sampled: unit of sampling: "user" or "example".
    """
    sentences = _delta(config, relation, counted, sampled)
    return tuple(sentence for sentence in sentences if "Warning" in sentence)


def _delta(config: Config, relation: Relation, counted: int, sampled: str) -> tuple[str, ...]:
    """Return a sentence on δ as a power of the number of users."""
    privacy = config.privacy
    if privacy.delta is None or counted < 2:
        return ()
    if privacy.declared_num_users is not None:
        return (delta_sentence(privacy.delta, privacy.declared_num_users, True),)
    # A pool has at most as many users as examples. This does not hold for owners, who share them.
    examples, hides = privacy.declared_num_examples, relation is Relation.ADD_OR_REMOVE
    if hides and sampled == "example" and examples is not None:
        origin = "declared public, of at most as many users"
        return (delta_sentence(privacy.delta, examples, True, origin, "pooled examples"),)
    origin = "a number that the relation does not hide"
    return (delta_sentence(privacy.delta, counted, not hides, origin, f"{relation.unit}s"),)


def _data(config: Config, materials: Materials, plan: RoundPlan) -> DataSummary:
    store, split = materials.store, materials.split
    held_out = split.held_out_examples
    return DataSummary(
        users=split.num_users,
        examples=int(split.user_sizes.sum()),
        tokens=int(store.lengths(split.train_examples).sum()),
        dropped={**store.manifest["dropped"], **plan.dropped},
        source=config.data.source,
        held_out_examples=len(held_out),
        held_out_tokens=int(store.lengths(held_out).sum()),
        canaries=len(split.canaries),
        notices=about_canaries(config.data.canaries),
    )


def _model(config: Config, materials: Materials, state: ServerState) -> ModelSummary:
    trainable = sum(value.numel() for value in state.parameters.values())
    # The config has no rank for loaded adapters; their B has one column per rank.
    ranks = [value.shape[-1] for name, value in state.parameters.items() if ".lora_B." in name]
    return ModelSummary(
        name=config.model.name_or_path,
        parameters=materials.model.num_parameters,
        trainable_parameters=trainable,
        trainable_pattern=config.model.trainable,
        lora_rank=config.model.lora_rank or max(ranks, default=0),
        origin=" ".join([materials.model.origin, *materials.earlier_training]),
        quantisation=config.model.quantisation,
    )


def _samples(config: Config, materials: Materials, state: ServerState) -> Samples:
    model, seed = materials.model, config.seed
    longest = min(SAMPLE_TOKENS, config.data.sequence_length)
    start = model.initial_parameters()
    texts = (sample_texts(model, p, SAMPLES, longest, seed) for p in (start, state.model))
    initial, final = map(tuple, texts)
    return Samples(initial=initial, final=final)


def _machine(config: Config) -> dict[str, JsonValue]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "precision": config.executor.precision,
    }
