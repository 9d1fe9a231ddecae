"""What builders of plans share: public sizes, clips and noise from the config."""

from __future__ import annotations

import logging

from fedsim.accounting.accountants import resolve_accountant
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.clipping import Clip, FlatClip, NormalisedClip, PerLayerClip, layers_of
from fedsim.config import ClipConfig, Config, StrategyConfig
from fedsim.errors import ConfigError
from fedsim.language_model import LanguageModel
from fedsim.plan import TaskSpec
from fedsim.server_optimizer import ServerOptimizer

log = logging.getLogger(__name__)


def public_size(declared: int | None, counted: int, field: str, noun: str) -> tuple[int, str]:
    """Return the population size that rates and denominators use, and the sentence that says so.

    Under add-or-remove one user the true number is private. Declared, it is a public constant,
    right or wrong; counted, the guarantee rests on its being public, and the report says that.
    """
    if declared is not None:
        return declared, f"The number of {noun}, {declared}, was declared public ({field})."
    sentence = (
        f"The number of {noun}, {counted}, was counted in the private data and is treated as "
        f"public; declare it with {field} to rest on no private count."
    )
    log.warning("%s", sentence)
    return counted, sentence


def probability(expected: float | None, size: int, field: str, noun: str) -> float:
    """Return expected / size, or a `ConfigError` when it is missing or over 1."""
    if expected is None:
        raise ConfigError(f"{field}: missing; give the expected number of {noun} a round")
    if expected > size:
        raise ConfigError(
            f"{field} = {expected:g}: larger than the population of {size} {noun}; "
            f"give at most {size}"
        )
    return expected / size


def build_clip(config: ClipConfig, model: LanguageModel) -> Clip:
    """Return the clip that the config describes, over the layers of the model's parameters."""
    layers = layers_of(model.initial_parameters())
    clip: FlatClip | PerLayerClip
    if config.l2_clip_norms is not None:
        if wrong := set(layers) ^ config.l2_clip_norms.keys():
            raise ConfigError(
                f"strategy.clip.l2_clip_norms: {sorted(wrong)} missing or unknown; "
                f"the trainable layers are {layers}"
            )
        clip = PerLayerClip(l2_clip_norms=config.l2_clip_norms)
    elif config.l2_clip_norm is None:
        raise ConfigError("strategy.clip.l2_clip_norm: missing")
    elif config.kind == "per-layer":
        clip = PerLayerClip.evenly(config.l2_clip_norm, layers)
    else:
        clip = FlatClip(l2_clip_norm=config.l2_clip_norm)
    return NormalisedClip(clip=clip) if config.normalise else clip


def noise_multiplier(config: Config, sampling_probability: float, units_per_user: int) -> float:
    """Return the configured noise multiplier, or the least that keeps the configured ε."""
    privacy = config.privacy
    if privacy.delta is None:
        raise ConfigError("privacy.delta: missing; a guarantee needs it, such as delta = 1e-5")
    # Also where no noise is to be calibrated: a wrong name must not be found after the first round.
    resolve_accountant(privacy.accountant, units_per_user)
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    if privacy.epsilon is None:
        raise ConfigError("privacy: give epsilon (with delta) or noise_multiplier")
    return calibrate_noise_multiplier(
        sampling_probability=sampling_probability,
        units_per_user=units_per_user,
        rounds=config.strategy.rounds,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        accountant=privacy.accountant,
    )


def user_task(config: StrategyConfig) -> TaskSpec:
    """Return the task of one user: averaged gradient or local SGD, as `strategy.local` says."""
    local = config.local.model_dump(exclude={"task"})
    options = {
        "group_size": config.group_size,
        "selection": config.selection,
        "user_weight_cap": config.user_weight_cap,
    }
    return TaskSpec(name=config.local.task, options={**options, **local})


def server_optimizer(config: Config) -> ServerOptimizer:
    """Return the server's optimizer."""
    return ServerOptimizer(config.server.optimizer, config.server.learning_rate)


def only(config: StrategyConfig, **unused: object) -> None:
    """Raise `ConfigError` if a key that this strategy has no use for was set."""
    for field, value in unused.items():
        if value is not None:
            raise ConfigError(
                f"strategy.{field} = {value!r}: not used by strategy {config.name!r}; remove it"
            )
