"""User inference on a finished run (Kandpal et al. 2023): was a user's text trained on?

The attacker has a few texts of a user, all outside the training data. The attacker compares their
likelihoods under the trained model and under a reference model. If texts have several owners,
owners without own texts are a separate group: listeners.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedsim.accounting.earlier_training import BUILT_IN
from fedsim.attacks.measuring import (
    RESAMPLES,
    LogRatios,
    after_round,
    measure_group,
    rank_correlation,
)
from fedsim.attacks.samples import (
    FEWEST_USERS,
    AttackSamples,
    choose_sides,
    default_samples,
    known_samples,
)
from fedsim.config import Config, ModelConfig
from fedsim.data.store import Indices, TokenStore
from fedsim.errors import ConfigError, about
from fedsim.evaluation.score_cache import ScoreCache
from fedsim.evaluation.scoring import ExampleScores
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_beside, materials_of
from fedsim.report.attack_report import AttackReport, Bound
from fedsim.report.schema import Privacy, load_report
from fedsim.runner.checkpoint import checkpoints_in, load_checkpoint
from fedsim.runner.folder import RunFolder
from fedsim.strategy import build_plan
from fedsim.tensors import Tensors

NOTE = (
    "Scores and rates are computed on private text, not protected by the privacy guarantee. An "
    "interval is a 95 % bootstrap interval over the users, but not over trainings or texts. With "
    "few users, or near 0 and 1, it covers the true value less often."
)

_EARLIER = (
    "The {} was trained before, or may have been, and a seed always holds out the same users. "
    "This run's guarantee does not cover that training, so it does not bound this attack."
)


def attack_run(
    run_dir: Path,
    *,
    samples: Sequence[int] = (),
    reference: str | None = None,
    checkpoints: bool = False,
) -> AttackReport:
    """Attack a finished run.

    RUN_DIR/attack/likelihoods caches log-likelihoods for further attacks.

    Args:
        run_dir: folder of a finished run with held-out users, or with canaries.
        samples: numbers m of samples per user for the attacker; the largest is the headline. If
            empty: 1, 2, 4, … while half of the users have that many.
        reference: name or path of the reference model; None: the run's initial model.
        checkpoints: also attack each checkpoint that the run kept.

    Raises:
        ConfigError: no finished run, no held-out users, too few users with enough samples, or a
            reference with another tokenizer.
    """
    folder = RunFolder(run_dir)
    folder.check_finished()
    report = load_report(run_dir)
    config = folder.read_config()
    data_seed = folder.data_seed(config)
    materials = materials_of(config, data_seed)
    split, store = materials.split, materials.store
    pooled = None  # examples from which rounds draw; None: all training examples
    if store.graph is not None and (plan := build_plan(config, materials)).unit == "example":
        pooled = plan.pool
    known = known_samples(store, split, config.data, data_seed, pooled)
    groups = _groups(known, split.canaries, store, config)
    folder.check_texts(materials)
    numbers = list(samples) or default_samples(known, groups.values())
    sides = {name: choose_sides(known, group, max(numbers)) for name, group in groups.items()}
    cache = ScoreCache(store, folder.path / "attack" / "likelihoods")

    def likelihoods(model: LanguageModel, parameters: Tensors) -> ExampleScores:
        return finite_scores(cache, model, parameters, known.samples)

    start = load_beside(config, config.model.start)
    reference_model = start if reference is None else _reference(reference, config, materials)
    before = likelihoods(reference_model, reference_model.initial_parameters())
    saved = load_beside(config, folder.served(config))
    after = likelihoods(saved, saved.initial_parameters())
    ratios = LogRatios(before.nats - after.nats, known.offsets)
    measured = [
        measure_group(name, side, ratios, numbers, config.seed) for name, side in sides.items()
    ]
    first = next(iter(sides.values()))
    look = partial(after_round, known=known, sides=first, before=before, samples=max(numbers))
    states = []
    for path in checkpoints_in(folder.checkpoints) if checkpoints else ():
        state = load_checkpoint(path)
        states.append(look(state.round, after=likelihoods(materials.model, state.model)))
    trained_before = []  # models that may come from earlier training with the same held-out users
    if materials.earlier_training or report.privacy.earlier_training:
        trained_before.append("starting model")
    if reference not in (None, config.model.name_or_path, *BUILT_IN):
        trained_before.append("reference model")
    bound = bound_of(report.privacy)
    if trained_before and config.privacy.noise == "seeded":
        bound = Bound(auroc=None, reason=_EARLIER.format(trained_before[0]))
    headline = measured[0].measured[0]
    return AttackReport(
        run=str(run_dir),
        title=report.title,
        reference=reference_model.name,
        auroc=headline.auroc,
        auroc_interval=headline.auroc_interval,
        tpr_at_fpr={f"{o.false_positive_rate:g}": o.true_positive_rate for o in headline.operating},
        users_in=measured[0].users_in,
        users_out=measured[0].users_out,
        samples_per_user=headline.samples,
        groups=tuple(measured),
        final=look(report.cost.rounds, after=after),
        checkpoints=tuple(states),
        rank_correlation=rank_correlation(states),
        bound=bound,
        privacy=report.privacy,
        resamples=RESAMPLES,
        note=NOTE,
    )


def finite_scores(
    cache: ScoreCache, model: LanguageModel, parameters: Tensors, samples: Indices
) -> ExampleScores:
    """Return the scores of samples.

    Raises:
        ConfigError: a log-likelihood is not finite, so it gives no statistic.
    """
    scores = cache.scores(model, parameters, samples)
    wrong = len(np.unique(samples[~np.isfinite(scores.nats)]))
    if wrong:
        raise ConfigError(
            f"{model.name}: {wrong} of {len(np.unique(samples))} log-likelihoods are not finite: "
            "the model diverged, and there is nothing to attack"
        )
    return scores


def _groups(
    known: AttackSamples, canaries: Indices, store: TokenStore, config: Config
) -> dict[str, Indices]:
    """Return the groups to attack: real users, canaries, and listeners (owners without own texts).

    A group without held-out users is left out, and so are too few listeners.
    """
    everyone = np.arange(store.num_users)
    groups = {"users": np.setdiff1d(everyone, canaries), "canaries": canaries}
    usable = {
        name: group for name, group in groups.items() if len(np.intersect1d(group, known.held_out))
    }
    silent = known.users >= store.num_users
    sides = (known.member[silent], ~known.member[silent])
    if store.graph is not None and min(map(np.sum, sides)) >= FEWEST_USERS:
        usable["listeners"] = np.arange(store.num_users, store.graph.num_owners)
    if not usable:
        raise ConfigError(
            f"data.held_out_users = {config.data.held_out_users}: the run has no held-out users; "
            "train with a fraction above 0, such as 0.5"
        )
    return usable


def _reference(name: str, config: Config, materials: Materials) -> LanguageModel:
    with about(f"--reference {name!r}: ", (ConfigError,)):
        model = load_beside(config, ModelConfig(name_or_path=name))
    if model.tokenizer_fingerprint != materials.model.tokenizer_fingerprint:
        raise ConfigError(
            f"--reference {name!r}: has another vocabulary than the run's "
            f"{materials.model.name!r}; give a model with the same tokenizer"
        )
    return model


_NO_ABSENCE = {
    "zero-out": "a user's data with zeros, not with the user's absence",
    "fixed-graph": "the content of all texts of an owner with zeros, not with the owner's absence",
    "replace": "a user's data with another user's, not with the user's absence",
}


def bound_of(privacy: Privacy) -> Bound:
    """Return the largest AUROC that the guarantee allows, or the reason why there is no bound."""
    curve = privacy.trade_off
    if curve is None:
        return Bound(auroc=None, reason="The run has no guarantee, so attacks have no bound.")
    if privacy.hypothetical:
        return Bound(auroc=None, reason="The run's ε is hypothetical, so it gives no bound.")
    for relation, compared in _NO_ABSENCE.items():
        if privacy.relation.startswith(relation):
            reason = f"The guarantee compares {compared}: it does not bound this attack."
            return Bound(auroc=None, reason=reason)
    simulated = "With secret randomness, the" if privacy.noise == "seeded" else "The"
    return Bound(
        auroc=curve.auroc,
        reason=f"{simulated} guarantee bounds an attack on one user, in the data or not, on "
        "average over the held-out users; a measured rate over n users can exceed the bound by "
        "chance, and by about 1/n.",
    )
