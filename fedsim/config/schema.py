"""The configuration of a run: each key with its type, default and description.

The docstring below a key is its row in docs/config.md: see `experiments/config_page.py`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import tomli_w
from pydantic import Field, ValidationError, model_validator

from fedsim.config.errors import explain
from fedsim.config.tables import OpenTable
from fedsim.data.config import DataConfig
from fedsim.data.selection import CohortRule
from fedsim.errors import ConfigError
from fedsim.utils.section import MOST, Fraction, Positive, PositiveFloat32, Section


class ScheduleConfig(Section):
    """A clip norm that follows a fixed schedule, from `l2_clip_norm` to another value."""

    kind: Literal["linear", "exponential"]
    """"linear": equal differences per round; "exponential": equal ratios."""
    final_l2_clip_norm: Positive
    """The clip norm at the end, and in all later rounds."""
    rounds: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Number of rounds of the change; left out, all rounds of the run."""


class AdaptiveConfig(Section):
    """A clip norm that tracks a quantile of norms (Andrew et al. 2021): `fedsim.clip_policy`."""

    quantile: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Share of updates that the clip should leave unchanged."""
    learning_rate: Positive = 0.2
    """Learning rate for the logarithm of the clip norm."""
    count_noise_stddev: Positive | None = None
    """Standard deviation of the noise on the count of updates within the clip norm, in units. Left
    out: a twentieth of the expected cohort, or twice the noise multiplier if that is larger."""


class ClipConfig(Section):
    """How a unit's update is clipped."""

    kind: str = "flat"
    """"flat" (one bound on the whole update), "per-layer" (a bound on each of its m layers:
    l2_clip_norm / √m), or a plug-in's clip."""
    l2_clip_norm: Positive | None = None
    """Largest L2 norm of a unit's update; 1.0 if there is no `[strategy.clip]`."""
    normalise: bool = False
    """Divide clipped updates by their bound, so that SGD's learning rate does not depend on it."""
    schedule: ScheduleConfig | None = None
    """A clip norm that follows a fixed schedule."""
    adaptive: AdaptiveConfig | None = None
    """A clip norm that tracks the norms of the updates; its privacy cost counts in ε."""

    @model_validator(mode="after")
    def _one_policy(self) -> Self:
        if self.schedule is not None and self.adaptive is not None:
            raise ValueError("schedule and adaptive both set the next clip norm: give one")
        return self


Precision = Literal["float32", "bfloat16"]
Attention = Literal["eager", "sdpa"]
Quantisation = Literal["int8", "nf4"]


class ModelConfig(Section):
    """Which model training starts from and which parameters it trains: `docs/models.md`."""

    name_or_path: str = "tiny-gpt"
    """"tiny-gpt", "mcmahan-lstm", or a causal language model: a folder, GGUF file or hub id."""
    lora_rank: Annotated[int, Field(ge=0, le=MOST)] = 0
    """Rank of new LoRA adapters, trained in place of the network; 0 for none."""
    lora_alpha: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """LoRA's α: the scale of the adapters times their rank; left out, twice the rank."""
    lora_rank_stabilised: bool = False
    """Divide `lora_alpha` by the square root of the rank (rsLoRA)."""
    lora_freeze_a: bool = False
    """Train only the second matrix of each adapter (FFA-LoRA)."""
    lora_target_modules: tuple[str, ...] = ()
    """Modules to adapt, by the ends of their names; if empty: `docs/models.md#how-much`."""
    adapter: str | None = None
    """A peft folder with adapters of this model to start from."""
    merged: bool = True
    """Also write `model/`, with the adapters merged in; false writes only `adapter/`."""
    trainable: str = "all"
    """Parameters to train: "all", or a regular expression that their names must contain."""
    pretraining_steps: Annotated[int, Field(ge=0, le=MOST)] | None = None
    """Pre-training steps of a built-in model on public text; left out, the model's default."""
    dropout: Fraction = 0.0
    """Dropout probability in training, for all `nn.Dropout` layers; not for attention weights."""
    attention: Attention = "eager"
    """"eager" keeps attention weights in memory for the gradient; "sdpa" (fused kernels) none."""
    quantisation: Quantisation | None = None
    """Frozen linear layers in 8 ("int8") or 4 bits ("nf4"); needs adapters and merged = false."""

    @model_validator(mode="after")
    def _targets_with_adapters(self) -> ModelConfig:
        options = ("target_modules", "alpha", "rank_stabilised", "freeze_a")
        given = [f"lora_{name}" for name in options if getattr(self, f"lora_{name}")]
        for_new = [name for name in given if name != "lora_freeze_a"]
        if self.adapter is not None and (self.lora_rank or for_new):
            name = "lora_rank" if self.lora_rank else for_new[0]
            raise ValueError(f"{name} is for new adapters, adapter for existing ones: give one")
        if given and not self.adapts:
            raise ValueError(f"{given[0]} needs lora_rank: without adapters it has no effect")
        only_adapters = self.adapts and self.trainable == "all"
        if self.quantisation and (self.merged or not only_adapters):
            raise ValueError(
                f'quantisation = "{self.quantisation}" trains and writes adapters alone: give '
                'lora_rank or adapter, trainable = "all" and merged = false'
            )
        if not self.merged and not only_adapters:
            raise ValueError('merged = false needs adapters and trainable = "all"')
        return self

    @property
    def adapts(self) -> bool:
        """Whether the model has adapters, new ones or loaded ones."""
        return self.lora_rank > 0 or self.adapter is not None

    @property
    def start(self) -> ModelConfig:
        """The config of the starting network without new adapters, which start at zero."""
        if self.quantisation:  # which is of frozen weights
            return self
        kept = {"name_or_path", "pretraining_steps", "adapter", "attention"}
        return ModelConfig(**self.model_dump(include=kept))


class FedSGD(Section):
    """Each user computes the mean gradient of their examples (DP-FedSGD)."""

    task: Literal["fedsgd"] = "fedsgd"


class FedAvg(Section):
    """Each user runs local SGD; the update is the change of the parameters (DP-FedAvg)."""

    task: Literal["fedavg"]
    epochs: Annotated[int, Field(ge=1, le=MOST)] = 1
    """Passes over the user's examples per round."""
    batch_size: Annotated[int, Field(ge=1, le=MOST)] = 8
    """Examples per local step."""
    learning_rate: PositiveFloat32 = 0.1
    """Learning rate of each local step."""
    schedule: Literal["constant", "linear"] = "constant"
    """Of the learning rate, over a user's steps in a round; "linear" lowers it towards 0."""
    momentum: Fraction = 0.0
    """Momentum of the local steps; a user starts each round without any."""
    proximal: Annotated[float, Field(ge=0.0, le=3e38, allow_inf_nan=False)] = 0.0
    """FedProx's μ: adds μ (θ − θ_server) to each local gradient."""


class EstimatorConfig(Section):
    """The denominator of the estimate: it divides the sum of clipped updates."""

    kind: str = "fixed"
    """"fixed": the expected weight of a cohort. "clipped": the weight of the drawn cohort, with a
    lower bound. Or the name of a plug-in's estimator."""


class SamplingConfig(Section):
    """The sampler that draws units: `docs/strategies.md`; its accountant: `docs/accounting.md`."""

    kind: str = "poisson"
    """"poisson", "truncated-poisson", "fixed-size", "shuffled", "balanced", "cyclic", or a
    plug-in's sampler."""


STRATEGIES = OpenTable("strategies", "strategy.name")


class StrategyConfig(Section):
    """The unit of sampling, the unit's computation and the clip: `docs/strategies.md`.

    All strategies have these keys.
    """

    name: str = "uls"
    """"uls" samples users, "els" samples examples; or another strategy below, or a plug-in's."""
    rounds: Annotated[int, Field(ge=1, le=MOST)] = 100
    """Number of rounds (server steps, each with one noisy release). `--resume` accepts a larger
    number, unless the accountant prices the run as a whole."""
    sampling: Annotated[SamplingConfig, OpenTable("samplers", "strategy.sampling.kind")] = Field(
        default={}, validate_default=True
    )
    """The sampler that draws the units of each round."""
    group_size: Annotated[int, Field(ge=1, le=MOST)] = 8
    """Maximum number of examples per user: in each round ("uls"), or in the whole pool ("els")."""
    selection: CohortRule = "random"
    """Rule that selects examples of a user who has more than `group_size`. "least-demand" is not
    for "uls", and "random-chunk" is not for "els"."""
    local: Annotated[FedSGD | FedAvg, Field(discriminator="task")] = FedSGD()
    """The computation of a user: a gradient, or local training."""
    clip: Annotated[ClipConfig, OpenTable("clips", "strategy.clip.kind")] = Field(
        default={"l2_clip_norm": 1.0}, validate_default=True
    )
    """How a unit's update is clipped."""
    estimator: Annotated[EstimatorConfig, OpenTable("estimators", "strategy.estimator.kind")] = (
        Field(default={}, validate_default=True)
    )
    """The denominator of the estimate: it divides the sum of clipped updates."""

    default_relation: ClassVar[str | None] = None
    """The neighbouring relation of the strategy; None: the sampler's."""
    unread: ClassVar[tuple[str, ...]] = ()
    """Keys without effect; a comparison does not train one line for each of their values."""

    @property
    def expected_users(self) -> float | None:
        """The key `cohort_size`; None if it is left out or the strategy lacks it."""
        return getattr(self, "cohort_size", None)

    @property
    def expected_examples(self) -> float | None:
        """The key `batch_size`; None if it is left out or the strategy lacks it."""
        return getattr(self, "batch_size", None)


class SharedLedgerConfig(Section):
    """One privacy budget for several runs on the same people.

    See `docs/privacy.md#several-runs-on-the-same-people`.
    """

    ledger: str
    """Path of the ledger file, the same for all runs that share the budget."""
    epsilon: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    """ε of all these runs together."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0)]
    """δ of all these runs together."""


class SearchConfig(Section):
    """The search to which this run belongs; `fedsim tune` writes these keys: `docs/tuning.md`."""

    trials: Annotated[float, Field(gt=1.0, le=500.0)]
    """Average number of trials."""
    stopping: Literal["geometric", "logarithmic", "poisson"] = "geometric"
    """Distribution of the number of trials."""
    trial: Annotated[int, Field(ge=0)] | None = None
    """Index of this trial."""


class PrivacyConfig(Section):
    """The privacy guarantee. Counts of users and examples are public only if declared here."""

    epsilon: Positive | None = None
    """Target ε; the noise is calibrated to it. Give this or `noise_multiplier`."""
    noise_multiplier: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    """Noise standard deviation divided by the sensitivity of the estimate."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """The δ of the guarantee; it should be far below 1 / (number of users)."""
    accountant: str | None = None
    """Accountant that computes ε from the rounds: see `docs/accounting.md`. A plug-in's accountant
    has its own keys in this table. Left out: the tightest proved for the sampler."""
    relation: Literal["add-or-remove-one", "zero-out-one", "replace-one", "fixed-graph"] | None = (
        None
    )
    """The neighbouring relation, which defines neighbouring data sets. Left out: "fixed-graph" if
    texts have several owners; "replace-one" with a sampler that reveals the number of users
    ("fixed-size"); else "add-or-remove-one"."""
    noise: Literal["secure", "seeded"] = "secure"
    """"secure" draws noise and coins from secrets; "seeded" from `seed`, for experiments: its ε is
    simulated, the run gives no protection. Left out, `compare` takes "seeded"."""
    mechanism: Literal["independent", "banded", "blt"] = "independent"
    """Noise of the rounds: independent, or correlated, which cancels part of earlier noise."""
    bands: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """With "banded": number of bands of its matrix; left out, the sampler's `groups`."""
    buffers: Annotated[int, Field(ge=1, le=6)] | None = None
    """With "blt": number of buffers (running sums of noise); left out, 3."""
    declared_num_users: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """The public number of users (with "truncated-poisson" an upper bound). Left out, fedsim counts
    the users in the data, and the report says so."""
    declared_num_examples: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """For "els": the public number of pooled examples; left out, fedsim counts them."""
    shared: SharedLedgerConfig | None = None
    """One privacy budget for several runs."""
    search: SearchConfig | None = None
    """The search to which this run belongs."""

    @property
    def accounted_by(self) -> str | None:
        """The accountant with its own keys, in the form that `accounting.accountants` takes."""
        own = {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name not in PrivacyConfig.model_fields
        }
        return f"{self.accountant} {json.dumps(own)}" if own else self.accountant

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ValueError(
                f"epsilon = {self.epsilon} together with noise_multiplier = "
                f"{self.noise_multiplier}: each determines the other, give one"
            )
        for name, kind in (("bands", "banded"), ("buffers", "blt")):
            if getattr(self, name) is not None and self.mechanism != kind:
                raise ValueError(
                    f"{name} = {getattr(self, name)} with mechanism = {self.mechanism!r}: only "
                    f"mechanism = {kind!r} takes it"
                )
        return self


class RateScheduleConfig(Section):
    """Schedule of the learning rate: a warm-up, then a decay of `kind` to a share of the rate."""

    kind: Literal["constant", "linear", "cosine", "inverse-square-root"] = "constant"
    """Shape of the decay after the warm-up."""
    warmup_rounds: Annotated[int, Field(ge=0, le=MOST)] = 0
    """Rounds of linear growth up to `server.learning_rate`."""
    final_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Final rate divided by `server.learning_rate`; it holds in all later rounds."""
    rounds: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Rounds of warm-up and decay together; left out, all rounds of the run."""

    @model_validator(mode="after")
    def _ends_where_its_kind_can(self) -> Self:
        if self.kind == "inverse-square-root" and self.final_share == 0.0:
            raise ValueError('final_share = 0.0: kind = "inverse-square-root" needs more than 0')
        if self.kind == "constant" and self.final_share > 0.0:
            raise ValueError(
                f'final_share = {self.final_share}: kind = "constant" has no decay; remove it'
            )
        return self


class AverageConfig(Section):
    """Evaluate and save an average of the parameters over the rounds.

    Training continues from the last parameters; metrics include their loss too. ε stays the same,
    because averaging is post-processing.
    """

    kind: Literal["exponential", "tail"]
    """"exponential": the newest parameters have the largest weight; "tail": equal weights."""
    decay: Fraction | None = None
    """With "exponential": ratio of a round's weight to the next round's; left out, 0.9."""
    start: Annotated[int, Field(ge=0, le=MOST)] | None = None
    """Number of initial rounds to skip; left out, 0, or with "tail" half of the run."""

    @model_validator(mode="after")
    def _decays_if_exponential(self) -> Self:
        if self.decay is not None and self.kind == "tail":
            raise ValueError(f'decay = {self.decay}: only kind = "exponential" takes it')
        return self

    def first_of(self, rounds: int) -> int:
        """Return the number of initial rounds that the average skips."""
        half = rounds // 2 if self.kind == "tail" else 0
        return half if self.start is None else self.start


class ServerConfig(Section):
    """The server's optimizer, which uses the released estimate as its gradient.

    Other arguments of torch's optimizer are keys too, such as `momentum`, `betas`, `eps`,
    `weight_decay` and `fused`.
    """

    optimizer: str = "auto"
    """"auto"; a class of `torch.optim` in lower case, such as "sgd", "adam", "adamw" or "muon" (for
    matrices, with AdamW for the rest); or a plug-in's. "auto" is Adam if `learning_rate` is given
    or the run adds no noise; else SGD."""
    learning_rate: PositiveFloat32 | None = None
    """Rate of the server's step; left out, "auto" sets it: `docs/planning.md#the-learning-rate`."""
    max_gradient_norm: PositiveFloat32 | None = None
    """Scale the released estimate down to this L2 norm if it is longer."""
    debias: bool = False
    """Subtract the noise variance from the second moment of "adam" or "adamw"."""
    schedule: RateScheduleConfig | None = None
    """Schedule of the learning rate. Left out: constant; without `learning_rate`, linear to 0."""
    average: AverageConfig | None = None
    """An average of the parameters; left out, none."""

    @model_validator(mode="after")
    def _has_a_rate(self) -> Self:
        if self.learning_rate is None and self.optimizer != "auto":
            raise ValueError(
                f"optimizer = {self.optimizer!r} without learning_rate: give one, such as 0.01; "
                'only "auto" chooses its own'
            )
        own = {*type(self).model_fields} - {*ServerConfig.model_fields}
        given = [name for name in sorted(own) if getattr(self, name) is not None]
        if self.debias:
            given.append("debias")
        if self.learning_rate is None and given:
            raise ValueError(
                f"{given[0]} = {getattr(self, given[0])!r} without learning_rate: the automatic "
                f"rate is for plain SGD; give learning_rate, such as 0.01, or remove {given[0]}"
            )
        return self


class ExecutorConfig(Section):
    """Where and how clients compute."""

    grid: Literal["in-process", "ray"] = "in-process"
    """Where clients run: in this process, or on Ray workers (`docs/cluster.md`)."""
    workers: Annotated[int, Field(ge=1, le=MOST)] = 1
    """Number of workers; more than 1 needs grid "ray"."""
    cpus_per_worker: Positive = 1.0
    """CPU cores that Ray reserves for each worker."""
    gpus_per_worker: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """GPUs that Ray reserves for each worker; above 0, this process also uses one if it can."""
    address: str = ""
    """Address of a running Ray cluster; "" starts Ray on this machine."""
    engine: Literal["auto", "loop", "materialised", "ghost", "vmap"] = "auto"
    """Method that computes clipped gradients; "auto" chooses by model, longest unit and memory."""
    precision: Precision = "float32"
    """Precision of the networks' products; parameters, norms, sums and noise keep theirs."""
    checkpointing: bool = False
    """Recompute the network's blocks in the backward pass, which saves memory."""
    shard_size: Annotated[int, Field(ge=0, le=MOST)] = 0
    """Units per message to a worker; 0: one message per worker, with about equal work."""
    reduce: Literal["central", "collective"] = "central"
    """Where sums are added, noised and stepped: in this process, or on Ray's workers, a share of
    the parameters on each: `docs/cluster.md#several-gpus-and-hosts-by-collectives`."""

    @model_validator(mode="after")
    def _fits_together(self) -> ExecutorConfig:
        if self.grid == "in-process" and (self.workers > 1 or self.address):
            raise ValueError(
                f"workers = {self.workers}, address = {self.address!r}: several workers or "
                'an address need grid = "ray"'
            )
        if self.grid == "in-process" and self.reduce == "collective":
            raise ValueError('reduce = "collective": workers exchange sums; needs grid = "ray"')
        if self.checkpointing and self.engine == "vmap":
            raise ValueError(
                'checkpointing = true with engine = "vmap": torch.func cannot recompute '
                'activations; take engine "auto", "loop", "materialised" or "ghost"'
            )
        return self


class PrivateEvaluation(Section):
    """Private held-out scores: noisy sums over users, covered by ε (`docs/tuning.md`)."""

    noise_multiplier: PositiveFloat32 = 10.0
    """Noise multiplier of each release."""
    loss_bound: PositiveFloat32 = 10.0
    """Bound to which a user's mean loss is clipped, in nats per token."""
    every: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Rounds between releases; left out, one release after the last round."""


class TrainingConfig(Section):
    """How often to evaluate and to save; which trackers get the metrics."""

    evaluate_every: Annotated[int, Field(ge=1, le=MOST)] = 10
    """Rounds between evaluations on held-out text, besides those of the first and last model."""
    checkpoint_every: Annotated[int, Field(ge=1, le=MOST)] = 10
    """Rounds between checkpoints. Signals (exit status 130) and errors save the last round; SIGKILL
    does not: `--resume` repeats the rounds since, which secure noise charges twice."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=MOST)] = 2
    """Number of newest checkpoints to keep."""
    trackers: tuple[str, ...] = ()
    """Trackers of the metrics: "tensorboard", "wandb", "mlflow", or a plug-in's."""
    private_evaluation: PrivateEvaluation | None = None
    """Private held-out scores; ε covers them."""


class Config(Section):
    """A whole run."""

    seed: int = 0
    """Seed of the initial parameters; with `privacy.noise = "seeded"`, of all other draws too."""
    data: DataConfig = DataConfig()
    """The texts and their users."""
    model: ModelConfig = ModelConfig()
    """Which model training starts from, and which of its parameters are trained."""
    strategy: Annotated[StrategyConfig, STRATEGIES] = Field(default={}, validate_default=True)
    """The unit of sampling, the unit's computation and the clip."""
    privacy: Annotated[PrivacyConfig, OpenTable("accountants", "privacy.accountant")] = (
        PrivacyConfig()
    )
    """The privacy guarantee."""
    server: Annotated[ServerConfig, OpenTable("server_optimizers", "server.optimizer")] = Field(
        default={}, validate_default=True
    )
    """The optimizer of the server."""
    executor: ExecutorConfig = ExecutorConfig()
    """Where and how clients compute."""
    training: TrainingConfig = TrainingConfig()
    """How often to evaluate and to save."""

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        engine = self.executor.engine
        shares_passes = engine not in ("auto", "loop")
        scores, search = self.training.private_evaluation, self.privacy.search
        if shares_passes and self.strategy.local.task == "fedavg":
            raise ValueError(f'executor.engine = "{engine}": local training needs "loop" or "auto"')
        if self.model.attention != "eager" and self.executor.engine == "vmap":
            raise ValueError(
                f'model.attention = "{self.model.attention}" with executor.engine = "vmap": '
                'torch.func has no rule for it; take another engine, or attention "eager"'
            )
        self._check_rounds()
        if scores is not None and self.data.co_owned:
            raise ValueError(
                "training.private_evaluation with data.owners_column: scores would protect only "
                "one of a text's owners; remove one of the two keys"
            )
        if scores is not None and not self.data.held_out_examples:
            raise ValueError(
                "training.private_evaluation with data.held_out_examples = 0: there is no text to "
                "score; give a fraction above 0"
            )
        if self.privacy.shared is not None and self.data.made_up_by is not None:
            raise ValueError(
                f"privacy.shared with users that a {self.data.made_up_by} made up: the ledger's ε "
                "would not be about people; remove privacy.shared"
            )
        if search is not None and (scores is None or scores.every is not None):
            raise ValueError(
                "privacy.search: needs training.private_evaluation, the score that chooses the "
                "best trial, without the key every"
            )
        return self

    def _check_rounds(self) -> None:
        """Raise `ValueError` if the run is too short for the server's schedule or average."""
        rounds, schedule, average = self.strategy.rounds, self.server.schedule, self.server.average
        if schedule is not None:
            whole = schedule.rounds or rounds
            if whole > rounds:
                raise ValueError(
                    f"server.schedule.rounds = {whole}: longer than the run, which has "
                    f"strategy.rounds = {rounds}"
                )
            if schedule.warmup_rounds >= whole:
                raise ValueError(
                    f"server.schedule.warmup_rounds = {schedule.warmup_rounds}: give fewer than "
                    f"the schedule's {whole} rounds"
                )
        if average is not None and average.first_of(rounds) >= rounds:
            raise ValueError(
                f"server.average.start = {average.start}: the average never starts; give less than "
                f"strategy.rounds = {rounds}"
            )

    def to_toml(self) -> str:
        """Return the resolved config as TOML; keys without a value are left out."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def load_config(
    path: Path | str,
    overrides: Sequence[str] = (),
    *,
    noise: Literal["secure", "seeded"] = "secure",
) -> Config:
    """Read a TOML file, apply `key.path=value` overrides and validate.

    `noise` is the default of `privacy.noise`.

    Raises:
        ConfigError: unreadable file, bad TOML, a malformed override or any invalid key.
    """
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"config: {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"config: cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"config: {path} is not TOML in UTF-8: {error}") from None
    for override in overrides:
        _apply_override(raw, override)
    named = {override.partition("=")[0].strip() for override in overrides}
    if "strategy.name" in named:
        _drop_other_size(raw["strategy"], named)
    if isinstance(privacy := raw.setdefault("privacy", {}), dict):
        privacy.setdefault("noise", noise)
    return parse_config(raw)


def parse_config(raw: Mapping[str, Any]) -> Config:
    """Validate a nested mapping.

    Raises:
        ConfigError: invalid keys; the message has one line for each.
    """
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        lines = [explain(problem, Config, raw) for problem in problems]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None
    if errors := list(_converted_numbers(raw, config.model_dump())):
        raise ConfigError("\n".join(errors))
    return config


def _converted_numbers(raw: Any, parsed: Any, key: str = "") -> Iterator[str]:  # noqa: ANN401
    """Yield an error for each boolean or string that pydantic converted to a number."""
    if isinstance(raw, Mapping) and isinstance(parsed, Mapping):
        for name, value in raw.items():
            yield from _converted_numbers(value, parsed.get(name), f"{key}.{name}" if key else name)
    elif isinstance(raw, list | tuple) and isinstance(parsed, list | tuple):
        for number, (value, other) in enumerate(zip(raw, parsed, strict=False)):
            yield from _converted_numbers(value, other, f"{key}.{number}")
    elif isinstance(raw, bool | str) and type(parsed) in (int, float):
        yield f"{key} = {raw!r}: give a number"


def _drop_other_size(strategy: dict[str, Any], named: Collection[str]) -> None:
    """Drop `cohort_size` or `batch_size` if the overriding strategy does not have the key."""
    try:
        options = STRATEGIES.options(StrategyConfig, strategy)
    except ConfigError:
        return  # an unknown strategy: validation reports it
    for key in {"cohort_size", "batch_size"} - options.model_fields.keys():
        if f"strategy.{key}" not in named:
            strategy.pop(key, None)


def with_settings(config: Config, overrides: Sequence[str]) -> Config:
    """Return the config with `key.path=value` overrides applied, validated as a whole.

    Raises:
        ConfigError: a malformed override or an invalid key.
    """
    raw = config.model_dump(exclude_none=True)
    for override in overrides:
        _apply_override(raw, override)
    return parse_config(raw)


def _apply_override(raw: dict[str, Any], override: str) -> None:
    """Set `key.path=value` in a nested mapping; the value is TOML or a bare word.

    Raises:
        ConfigError: no key, no "=", or a path through a value that is not a section.

    Examples:
        >>> raw = {"server": {"learning_rate": 0.1}}
        >>> _apply_override(raw, "server.learning_rate=0.4")
        >>> _apply_override(raw, "strategy.name=els")
        >>> raw
        {'server': {'learning_rate': 0.4}, 'strategy': {'name': 'els'}}
    """
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
