"""The configuration of a run: every key, its type and its default."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError, model_validator

from fedsim.config.errors import explain
from fedsim.data.config import DataConfig
from fedsim.errors import ConfigError
from fedsim.utils.section import ClipNorm, Fraction, Positive, Section


class ScheduleConfig(Section):
    """From the clip's norm to `final_l2_clip_norm` over `rounds`, then held; all rounds if None."""

    kind: Literal["linear", "exponential"]
    final_l2_clip_norm: ClipNorm
    rounds: Annotated[int, Field(ge=1)] | None = None


class AdaptiveConfig(Section):
    """After a quantile of the updates' norms (Andrew et al. 2021): see `fedsim.clip_policy`.

    `count_noise_stddev` is σ_b, in units. Left out, a twentieth of the expected cohort, as the
    paper recommends, but twice the noise multiplier where that is more: then the count takes 3 %
    of the noise on the updates, not most of it.
    """

    quantile: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    learning_rate: Positive = 0.2
    count_noise_stddev: Positive | None = None


class ClipConfig(Section):
    """Flat: one bound. Per-layer: S/√m each, or `l2_clip_norms` layer by layer."""

    kind: Literal["flat", "per-layer"] = "flat"
    l2_clip_norm: ClipNorm | None = None
    l2_clip_norms: dict[str, ClipNorm] | None = None
    normalise: bool = False
    schedule: ScheduleConfig | None = None
    adaptive: AdaptiveConfig | None = None

    @model_validator(mode="after")
    def _one_bound_and_one_policy(self) -> ClipConfig:
        if (self.l2_clip_norm is None) == (self.l2_clip_norms is None):
            raise ValueError("give l2_clip_norm or, per layer, l2_clip_norms: one of the two")
        if self.kind == "flat" and self.l2_clip_norms is not None:
            raise ValueError('l2_clip_norms needs kind = "per-layer"')
        if self.schedule is not None and self.adaptive is not None:
            raise ValueError("schedule and adaptive each say which clip comes next: give one")
        return self


Precision = Literal["float32", "bfloat16"]
Attention = Literal["eager", "sdpa"]
Selection = Literal[
    "random",
    "longest",
    "shortest",
    "highest-perplexity",
    "lowest-perplexity",
    "random-chunk",
    "least-demand",
]
Bounding = Literal["greedy", "random", "linear-program"]


_LONGEST = 1 << 16  # bytes; a dotted key takes the parser the square of its depth


class ModelConfig(Section):
    """Which network starts, which of its parameters move, and how much is dropped in training.

    `dropout` is that of all `nn.Dropout` layers of the network and of its adapters, except the
    ones of attention weights: no attention weight is ever dropped.
    `lora_target_modules` are ends of module names, such as "q_proj"; empty for peft's choice.
    `lora_alpha` is twice the rank if left out; `lora_rank_stabilised` divides it by the rank's root
    (rsLoRA); `lora_freeze_a` trains the second matrices alone (FFA-LoRA). `adapter` is a folder of
    peft's with adapters of this model, to start from in place of new ones. With `merged = false` a
    run that trains adapters leaves `adapter/` and no `model/`. `attention` is the way of computing
    it, by transformers' names: "eager" keeps every attention weight for the gradient, "sdpa" none.
    """

    name_or_path: str = "tiny-gpt"
    lora_rank: Annotated[int, Field(ge=0)] = 0
    lora_alpha: Annotated[int, Field(ge=1)] | None = None
    lora_rank_stabilised: bool = False
    lora_freeze_a: bool = False
    lora_target_modules: tuple[str, ...] = ()
    adapter: str | None = None
    merged: bool = True
    trainable: str = "all"
    pretraining_steps: Annotated[int, Field(ge=0)] | None = None
    dropout: Fraction = 0.0
    attention: Attention = "eager"

    @model_validator(mode="after")
    def _targets_with_adapters(self) -> ModelConfig:
        options = ("target_modules", "alpha", "rank_stabilised", "freeze_a")
        given = [f"lora_{name}" for name in options if getattr(self, f"lora_{name}")]
        of_new = [name for name in given if name != "lora_freeze_a"]
        if self.adapter is not None and (self.lora_rank or of_new):
            name = "lora_rank" if self.lora_rank else of_new[0]
            raise ValueError(f"{name} is of new adapters, and adapter names those that there are")
        if given and not self.adapts:
            raise ValueError(f"{given[0]} needs lora_rank: without adapters it has no place")
        if not self.merged and not (self.adapts and self.trainable == "all"):
            raise ValueError("merged = false needs adapters, and nothing else that is trained")
        return self

    @property
    def adapts(self) -> bool:
        """Whether there are adapters, new ones or those of a folder."""
        return self.lora_rank > 0 or self.adapter is not None


class FedSGD(Section):
    """One averaged gradient a user (DP-FedSGD)."""

    task: Literal["fedsgd"] = "fedsgd"


class FedAvg(Section):
    """Local SGD; the update is the parameters' difference (DP-FedAvg)."""

    task: Literal["fedavg"]
    epochs: Annotated[int, Field(ge=1)] = 1
    batch_size: Annotated[int, Field(ge=1)] = 8
    learning_rate: Positive = 0.1


class EstimatorConfig(Section):
    """Fixed: divide by the expected weight. Clipped: by max(q * min_weight, the drawn weight)."""

    kind: Literal["fixed", "clipped"] = "fixed"
    min_weight: Positive | None = None

    @model_validator(mode="after")
    def _min_weight_with_clipped(self) -> EstimatorConfig:
        if (self.kind == "clipped") != (self.min_weight is not None):
            raise ValueError('kind = "clipped" needs min_weight, and only it takes min_weight')
        return self


class SamplingConfig(Section):
    """The sampler: see `fedsim.sampling`.

    Truncated Poisson takes `max_cohort_size`; balanced takes `participations`, the rounds of each
    user, or finds it by cohort_size; cyclic takes `groups`, which take turns.
    """

    kind: Literal[
        "poisson", "truncated-poisson", "fixed-size", "shuffled", "balanced", "cyclic"
    ] = "poisson"
    max_cohort_size: Annotated[int, Field(ge=1)] | None = None
    participations: Annotated[int, Field(ge=1)] | None = None
    groups: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _cap_with_truncated(self) -> SamplingConfig:
        if (self.kind == "truncated-poisson") != (self.max_cohort_size is not None):
            raise ValueError(
                'kind = "truncated-poisson" needs max_cohort_size, and only it takes one'
            )
        if self.participations is not None and self.kind != "balanced":
            raise ValueError('participations: only kind = "balanced" takes it')
        if (self.kind == "cyclic") != (self.groups is not None):
            raise ValueError('kind = "cyclic" needs groups, and only it takes them')
        return self


class StrategyConfig(Section):
    """What is sampled, what one unit computes, how units are bounded.

    Where texts have several owners, `bounding` keeps examples of which no owner has more than
    `group_size`, in the order of `selection`: see `fedsim.data.bounding`.
    """

    name: str = "uls"
    rounds: Annotated[int, Field(ge=1)] = 100
    sampling: SamplingConfig = SamplingConfig()
    cohort_size: Positive | None = None
    batch_size: Positive | None = None
    group_size: Annotated[int, Field(ge=1)] = 8
    selection: Selection = "random"
    bounding: Bounding | None = None
    user_weight_cap: Annotated[int, Field(ge=1)] | None = None
    local: Annotated[FedSGD | FedAvg, Field(discriminator="task")] = FedSGD()
    clip: ClipConfig = ClipConfig(l2_clip_norm=1.0)
    estimator: EstimatorConfig = EstimatorConfig()
    concentration_radius: Positive | None = None


class SharedLedgerConfig(Section):
    """A ledger file that runs on the same people share, and the budget that they keep together."""

    ledger: str
    epsilon: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0.0, lt=1.0)]


class SelectionConfig(Section):
    """The search that the run is a trial of: see `fedsim.accounting.selection`.

    `trial` is a number that tells one from the others; `fedsim tune` draws it.
    """

    trials: Annotated[float, Field(gt=1.0, le=500.0)]
    stopping: Literal["geometric", "logarithmic", "poisson"] = "geometric"
    trial: Annotated[int, Field(ge=0)] | None = None


class PrivacyConfig(Section):
    """The promise. Sizes of the population are public only if they are declared here.

    `mechanism` says whether the noise of later rounds takes back part of what earlier ones added:
    "banded" by `bands` (by default the sampler's groups), "blt" by `buffers` (3).
    """

    epsilon: Positive | None = None
    noise_multiplier: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    accountant: str | None = None
    relation: Literal["add-or-remove-one", "zero-out-one", "replace-one", "fixed-graph"] | None = (
        None
    )
    noise: Literal["secure", "seeded"] = "secure"
    mechanism: Literal["independent", "banded", "blt"] = "independent"
    bands: Annotated[int, Field(ge=1)] | None = None
    buffers: Annotated[int, Field(ge=1, le=6)] | None = None
    declared_num_users: Annotated[int, Field(ge=1)] | None = None
    declared_num_examples: Annotated[int, Field(ge=1)] | None = None
    shared: SharedLedgerConfig | None = None
    selection: SelectionConfig | None = None

    @model_validator(mode="after")
    def _not_both(self) -> PrivacyConfig:
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ValueError(
                f"epsilon = {self.epsilon} together with noise_multiplier = "
                f"{self.noise_multiplier}: each decides the other, give one"
            )
        for name, kind in (("bands", "banded"), ("buffers", "blt")):
            if getattr(self, name) is not None and self.mechanism != kind:
                raise ValueError(
                    f"{name} = {getattr(self, name)} with mechanism = {self.mechanism!r}: only "
                    f"mechanism = {kind!r} takes it"
                )
        return self


class ServerConfig(Section):
    """The optimizer that takes the released estimate as its gradient, scaled down to a norm."""

    optimizer: Literal["sgd", "adam", "adafactor"] = "adam"
    learning_rate: Positive = 0.01
    max_gradient_norm: Positive | None = None


class ExecutorConfig(Section):
    """Who computes, how, and in what portions; `shard_size` 0 cuts by work, one a worker.

    With `precision` "bfloat16" the workers' networks multiply in bfloat16, a unit at a time;
    parameters, norms, sums and noise keep their width, and the server evaluates in float32. With
    `checkpointing`
    workers compute a network's blocks again in the backward pass instead of keeping activations.
    """

    grid: Literal["in-process", "ray"] = "in-process"
    workers: Annotated[int, Field(ge=1)] = 1
    cpus_per_worker: Positive = 1.0
    gpus_per_worker: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    address: str = ""
    engine: Literal["auto", "loop", "materialised", "ghost", "vmap"] = "auto"
    precision: Precision = "float32"
    checkpointing: bool = False
    shard_size: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _fits_together(self) -> ExecutorConfig:
        if self.grid == "in-process" and (self.workers > 1 or self.address):
            raise ValueError(
                f"workers = {self.workers}, address = {self.address!r}: more than this process "
                'needs grid = "ray"'
            )
        if self.checkpointing and self.engine == "vmap":
            raise ValueError(
                'checkpointing = true with engine = "vmap": torch.func cannot compute activations '
                'again; take engine "auto", "loop", "materialised" or "ghost"'
            )
        return self


class PrivateEvaluation(Section):
    """Held-out scores that ε covers: one noisy sum over users, after the last round or oftener.

    `noise_multiplier` is of each release, `loss_bound` what a user's mean loss is cut at, in nats.
    """

    noise_multiplier: Positive = 10.0
    loss_bound: Positive = 10.0
    every: Annotated[int, Field(ge=1)] | None = None


class TrainingConfig(Section):
    """How often to look and to save, and who is shown the metrics (entry points `trackers`)."""

    evaluate_every: Annotated[int, Field(ge=1)] = 10
    checkpoint_every: Annotated[int, Field(ge=1)] = 10
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    trackers: tuple[str, ...] = ()
    private_evaluation: PrivateEvaluation | None = None


class Config(Section):
    """A whole run."""

    seed: int = 0
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    strategy: StrategyConfig = StrategyConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    server: ServerConfig = ServerConfig()
    executor: ExecutorConfig = ExecutorConfig()
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        engine = self.executor.engine
        shares_passes = engine not in ("auto", "loop")
        scores, selection = self.training.private_evaluation, self.privacy.selection
        if shares_passes and self.strategy.local.task == "fedavg":
            raise ValueError(f'executor.engine = "{engine}": local training needs "loop" or "auto"')
        if self.model.attention != "eager" and self.executor.engine == "vmap":
            raise ValueError(
                f'model.attention = "{self.model.attention}" with executor.engine = "vmap": '
                'torch.func has no rule for it; take another engine, or attention "eager"'
            )
        if scores is not None and self.data.co_owned:
            raise ValueError(
                "training.private_evaluation with data.owners_column: a text with several owners "
                "would be scored for one of them alone; remove one"
            )
        if scores is not None and not self.data.held_out_examples:
            raise ValueError(
                "training.private_evaluation with data.held_out_examples = 0: there is no text to "
                "score; hold some out"
            )
        if selection is not None and (scores is None or scores.every is not None):
            raise ValueError(
                "privacy.selection: needs training.private_evaluation, the score that chooses, and "
                "it once, without every"
            )
        if shares_passes and self.executor.precision == "bfloat16":
            raise ValueError(
                f'executor.engine = "{engine}" with executor.precision = "bfloat16": a unit\'s '
                "gradient would move with the units that share its pass, by more than the noise "
                'covers; take "auto" or "loop", or precision "float32"'
            )
        if self.privacy.noise == "secure" and self.strategy.sampling.kind == "shuffled":
            raise ValueError(
                'strategy.sampling.kind = "shuffled" with privacy.noise = "secure": the order of '
                'a pass must be drawn again every round; take "seeded", or "balanced"'
            )
        return self

    def to_toml(self) -> str:
        """Return the resolved config as TOML; keys without a value are left out."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, lay `key.path=value` overrides over it and validate.

    Raises:
        ConfigError: unreadable file, bad TOML, a malformed override or any invalid key.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise ConfigError(f"config: {path} is longer than {_LONGEST} bytes; is it a config?")
        raw = tomllib.loads(content.decode().replace("\r\n", "\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: cannot read {path}: {error}") from None
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        raise ConfigError(f"config: {path} is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"config: {path} is nested too deeply") from None
    for override in overrides:
        _apply_override(raw, override)
    return parse_config(raw)


def parse_config(raw: Mapping[str, Any]) -> Config:
    """Validate a nested mapping; every problem is in the one `ConfigError`."""
    try:
        (config := Config.model_validate(raw)).to_toml()
        return config
    except ValidationError as error:
        problems = error.errors(include_url=False)
        lines = [explain(problem, Config) for problem in problems]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None
    except ValueError as error:  # a hexadecimal number of thousands of digits
        raise ConfigError(f"config: cannot be written: {error}") from None


def with_settings(config: Config, overrides: Sequence[str]) -> Config:
    """Return a config with `key.path=value` overrides laid over it, validated as a whole.

    Raises:
        ConfigError: a malformed override or an invalid key.
    """
    raw = config.model_dump(exclude_none=True)
    for override in overrides:
        _apply_override(raw, override)
    return parse_config(raw)


def _apply_override(raw: dict[str, Any], override: str) -> None:
    """Lay `key.path=value` over a nested mapping; the value is TOML or a bare word.

    Raises:
        ConfigError: no key, no "=", a path through something that is no section, or not UTF-8.

    Examples:
        >>> raw = {"server": {"learning_rate": 0.1}}
        >>> _apply_override(raw, "server.learning_rate=0.4")
        >>> _apply_override(raw, "strategy.name=els")
        >>> raw
        {'server': {'learning_rate': 0.4}, 'strategy': {'name': 'els'}}
    """
    try:
        override.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--set {override!r}: not UTF-8") from None
    key, separator, text = override.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or not all(path):
        raise ConfigError(
            f"--set {override!r}: expected key.path=value, such as server.learning_rate=0.1"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # a bare word is a string, so that shells need no nested quotes
    node = raw
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"--set {override!r}: {part!r} is a value, not a section")
    node[path[-1]] = value
