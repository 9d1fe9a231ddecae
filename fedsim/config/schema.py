"""The configuration of a run: every key, its type, its default and what it is.

The text under a key is its row in docs/config.md: see `page.py`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError, model_validator

from fedsim.config.errors import explain
from fedsim.data.config import DataConfig
from fedsim.errors import ConfigError
from fedsim.utils.section import MOST, ClipNorm, Fraction, Positive, PositiveFloat32, Section


class ScheduleConfig(Section):
    """A clip that moves from `l2_clip_norm` to another bound."""

    kind: Literal["linear", "exponential"]
    """By equal differences, or by equal ratios."""
    final_l2_clip_norm: ClipNorm
    """The bound at the end, held from then on."""
    rounds: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """How long it takes; left out, all rounds."""


class AdaptiveConfig(Section):
    """A clip after a quantile of the updates' norms (Andrew et al. 2021): `fedsim.clip_policy`."""

    quantile: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """The share of updates that the bound shall leave as they are."""
    learning_rate: Positive = 0.2
    """Of the bound's logarithm, a round."""
    count_noise_stddev: Positive | None = None
    """Of the noise on the count of updates under the bound, in units (σ_b). Left out, a twentieth
    of the expected cohort, as the paper recommends, but twice the noise multiplier where that is
    more: then the count takes 3 % of the noise on the updates, not most of it."""


class ClipConfig(Section):
    """How large one unit's update may be."""

    kind: Literal["flat", "per-layer"] = "flat"
    """One bound on the whole update, or one for each of its m layers: l2_clip_norm / √m."""
    l2_clip_norm: ClipNorm | None = None
    """The bound on the update's L2 norm; 1.0 where there is no `[strategy.clip]`."""
    l2_clip_norms: dict[str, ClipNorm] | None = None
    """With "per-layer", and in place of `l2_clip_norm`: a bound for each layer by its name."""
    normalise: bool = False
    """Scale smaller updates up to the bound too."""
    schedule: ScheduleConfig | None = None
    """A bound that moves as it was planned."""
    adaptive: AdaptiveConfig | None = None
    """A bound that follows the updates, at a price that the ledger counts."""

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
SelectionRule = Literal[
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
    """Which network starts, and which of its parameters move: `docs/models.md`."""

    name_or_path: str = "tiny-gpt"
    """A built-in model ("tiny-gpt", "mcmahan-lstm"), or a folder, GGUF file or hub id of a causal
    language model of transformers."""
    lora_rank: Annotated[int, Field(ge=0, le=MOST)] = 0
    """Of new low-rank adapters, which are trained in place of the network; 0 for none."""
    lora_alpha: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """The adapters' scale times their rank; left out, twice the rank."""
    lora_rank_stabilised: bool = False
    """Divide `lora_alpha` by the rank's root in place of the rank (rsLoRA)."""
    lora_freeze_a: bool = False
    """Train the second matrices alone (FFA-LoRA)."""
    lora_target_modules: tuple[str, ...] = ()
    """Ends of the names of modules that get adapters, such as "q_proj"; empty for peft's choice, or
    where it has none for every linear layer (of a mixture of experts those of attention)."""
    adapter: str | None = None
    """A folder of peft's with adapters of this model, to start from in place of new ones."""
    merged: bool = True
    """Leave `model/` too, with the adapters merged in; false leaves `adapter/` alone."""
    trainable: str = "all"
    """A regular expression: parameters in whose names it is found are trained; or "all"."""
    pretraining_steps: Annotated[int, Field(ge=0, le=MOST)] | None = None
    """Of a built-in model, on public text, once; left out, the model's own number."""
    dropout: Fraction = 0.0
    """Of all `nn.Dropout` layers of the network and its adapters in training, except those of
    attention weights: no attention weight is ever dropped."""
    attention: Attention = "eager"
    """How attention is computed, by transformers' names: "eager" keeps every attention weight for
    the gradient, "sdpa" none."""

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

    @property
    def start(self) -> ModelConfig:
        """Of the whole network that training starts from: new adapters begin as no change."""
        kept = {"name_or_path", "pretraining_steps", "adapter", "attention"}
        return ModelConfig(**self.model_dump(include=kept))


class FedSGD(Section):
    """The averaged gradient of a user's examples (DP-FedSGD)."""

    task: Literal["fedsgd"] = "fedsgd"


class FedAvg(Section):
    """Local SGD; the update is the difference of the parameters (DP-FedAvg)."""

    task: Literal["fedavg"]
    epochs: Annotated[int, Field(ge=1, le=MOST)] = 1
    """Passes over the user's examples."""
    batch_size: Annotated[int, Field(ge=1, le=MOST)] = 8
    """Examples a local step."""
    learning_rate: PositiveFloat32 = 0.1
    """Of a local step."""


class EstimatorConfig(Section):
    """What the sum of clipped updates is divided by."""

    kind: Literal["fixed", "clipped"] = "fixed"
    """The expected weight of a cohort, or the drawn one, where it is not too small."""
    min_weight: Positive | None = None
    """With "clipped": the denominator is max(q * min_weight, the drawn weight), q the sampling
    probability."""

    @model_validator(mode="after")
    def _min_weight_with_clipped(self) -> EstimatorConfig:
        if (self.kind == "clipped") != (self.min_weight is not None):
            raise ValueError('kind = "clipped" needs min_weight, and only it takes min_weight')
        return self


class SamplingConfig(Section):
    """The sampler: `docs/strategies.md`; which accountant proves it: `docs/accounting.md`."""

    kind: Literal[
        "poisson", "truncated-poisson", "fixed-size", "shuffled", "balanced", "cyclic"
    ] = "poisson"
    """How the units of a round are drawn."""
    max_cohort_size: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Of "truncated-poisson": the most units of a round; more are cut at random."""
    participations: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Of "balanced": the rounds of each user; left out, found by `cohort_size`."""
    groups: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Of "cyclic": how many groups of users take turns."""

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
    """What is sampled, what a unit computes, how it is bounded: `docs/strategies.md`."""

    name: str = "uls"
    """What is sampled and how it is priced: "uls", "els", "group-privacy", "asi-liu",
    "non-private", or what a plug-in brings."""
    rounds: Annotated[int, Field(ge=1, le=MOST)] = 100
    """Steps of the server, each with one release."""
    sampling: SamplingConfig = SamplingConfig()
    """How the units of a round are drawn."""
    cohort_size: Positive | None = None
    """Expected users a round, where users are sampled ("uls"; "non-private" takes one of both)."""
    batch_size: Positive | None = None
    """Expected examples a round, where examples are sampled ("els", "group-privacy")."""
    group_size: Annotated[int, Field(ge=1, le=MOST)] = 8
    """The most examples of a user: in a round ("uls"), or in the whole pool ("els")."""
    selection: SelectionRule = "random"
    """Which of a user's examples take part, where there are more."""
    bounding: Bounding | None = None
    """Where texts have several owners: how the examples are chosen of which no owner has more than
    `group_size`, in the order of `selection`; left out, "greedy"."""
    user_weight_cap: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Weigh a user's update by min(their examples / cap, 1); left out, all weigh the same."""
    local: Annotated[FedSGD | FedAvg, Field(discriminator="task")] = FedSGD()
    """What a user computes: a gradient, or local training."""
    clip: ClipConfig = ClipConfig(l2_clip_norm=1.0)
    """How large one unit's update may be."""
    estimator: EstimatorConfig = EstimatorConfig()
    """What the sum of clipped updates is divided by."""
    concentration_radius: Positive | None = None
    """Of "asi-liu" alone: the distance within which two updates count as close."""


class SharedLedgerConfig(Section):
    """A budget that runs on the same people keep together.

    See `docs/privacy.md#several-runs-on-the-same-people`.
    """

    ledger: str
    """The file that all of them name."""
    epsilon: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    """Of all of them together."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0)]
    """Of all of them together."""


class SelectionConfig(Section):
    """The search that the run is a trial of; `fedsim tune` writes it: `docs/tuning.md`."""

    trials: Annotated[float, Field(gt=1.0, le=500.0)]
    """How many there are on average."""
    stopping: Literal["geometric", "logarithmic", "poisson"] = "geometric"
    """The distribution of their number."""
    trial: Annotated[int, Field(ge=0)] | None = None
    """A number that tells this one from the others."""


class PrivacyConfig(Section):
    """The promise. Sizes of the population are public only if they are declared here."""

    epsilon: Positive | None = None
    """The ε to keep; the noise is calibrated to it. Give it or `noise_multiplier`."""
    noise_multiplier: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    """The noise's standard deviation over the estimate's sensitivity; ε follows from it."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """The δ of the ε: far below one over the number of users."""
    accountant: str | None = None
    """What adds up the rounds; left out, the tightest that is proved for the sampler:
    `docs/accounting.md`."""
    relation: Literal["add-or-remove-one", "zero-out-one", "replace-one", "fixed-graph"] | None = (
        None
    )
    """Which pairs of data sets the ε is about; left out, "fixed-graph" where texts have several
    owners, "replace-one" with "fixed-size" sampling and "asi-liu", else "add-or-remove-one"."""
    noise: Literal["secure", "seeded"] = "secure"
    """Noise and coins under secret keys, or from `seed`, for experiments that must be repeated."""
    mechanism: Literal["independent", "banded", "blt"] = "independent"
    """Whether the noise of later rounds takes back part of what earlier ones added."""
    bands: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Of "banded": how many rounds a column of its matrix C spans, its own counted; left out, the
    sampler's `groups`."""
    buffers: Annotated[int, Field(ge=1, le=6)] | None = None
    """Of "blt": the sums that it remembers; left out, 3."""
    declared_num_users: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """How many users there are, as a public number; of "truncated-poisson" an upper bound. Left
    out, it is counted in the data, and the report says so."""
    declared_num_examples: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """The same of pooled examples, for "els"."""
    shared: SharedLedgerConfig | None = None
    """A budget that several runs keep together."""
    selection: SelectionConfig | None = None
    """The search that the run is a trial of."""

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
    """The optimizer that takes the released estimate as its gradient."""

    optimizer: Literal["sgd", "adam", "adafactor"] = "adam"
    """SGD without momentum keeps no state, Adafactor a row and a column of each matrix, Adam two
    numbers a parameter."""
    learning_rate: PositiveFloat32 = 0.01
    """Of a round's step."""
    max_gradient_norm: PositiveFloat32 | None = None
    """Scale the released estimate down to this L2 norm; left out, it is taken as it is."""


class ExecutorConfig(Section):
    """Where clients compute, and how."""

    grid: Literal["in-process", "ray"] = "in-process"
    """This process, or workers of Ray: `docs/cluster.md`."""
    workers: Annotated[int, Field(ge=1, le=MOST)] = 1
    """How many, of Ray."""
    cpus_per_worker: Positive = 1.0
    """Cores that Ray reserves for a worker."""
    gpus_per_worker: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """GPUs that Ray reserves for a worker; 0.5 for two workers on one. Above 0, this process too
    computes on a GPU, if it has one."""
    address: str = ""
    """Of a Ray cluster that runs, such as "auto"; "" starts one on this machine."""
    engine: Literal["auto", "loop", "materialised", "ghost", "vmap"] = "auto"
    """How clipped gradients are computed; "auto" chooses by the model, the most tokens that a unit
    may have and the memory, and is "loop" in local training."""
    precision: Precision = "float32"
    """With "bfloat16" the workers' networks multiply in bfloat16; parameters, norms, sums and noise
    keep their width, and the server evaluates in float32."""
    checkpointing: bool = False
    """Compute a network's blocks again in the backward pass in place of keeping activations."""
    shard_size: Annotated[int, Field(ge=0, le=MOST)] = 0
    """Units a message to a worker; 0 cuts a cohort by work, one shard a worker."""

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
    """Held-out scores that ε covers, by a noisy sum over users: `docs/tuning.md`."""

    noise_multiplier: PositiveFloat32 = 10.0
    """Of each release of the scores."""
    loss_bound: PositiveFloat32 = 10.0
    """What a user's mean loss is cut at, in nats."""
    every: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Rounds between two releases; left out, there is one, after the last round."""


class TrainingConfig(Section):
    """How often to look and to save, and who is shown the metrics."""

    evaluate_every: Annotated[int, Field(ge=1, le=MOST)] = 10
    """Rounds between two scores of the held-out text."""
    checkpoint_every: Annotated[int, Field(ge=1, le=MOST)] = 10
    """Rounds between two checkpoints. A run that is killed makes those since the last again: with
    secure noise they are paid for twice. Ctrl-C stops the run once its round is written down, and
    loses none; a second one stops it at once."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=MOST)] = 2
    """How many of the newest stay."""
    trackers: tuple[str, ...] = ()
    """Who is shown the metrics: "tensorboard", "wandb", "mlflow", or what a plug-in brings."""
    private_evaluation: PrivateEvaluation | None = None
    """Held-out scores that ε covers."""


class Config(Section):
    """A whole run."""

    seed: int = 0
    """Of the model's start and, where `privacy.noise` is "seeded", of every other draw: else who is
    held out, the pool, dropout, coins and noise are drawn under secret keys."""
    data: DataConfig = DataConfig()
    """The text, and whose it is."""
    model: ModelConfig = ModelConfig()
    """Which network starts, and which of its parameters move."""
    strategy: StrategyConfig = StrategyConfig()
    """What is sampled, what one unit computes, how units are bounded."""
    privacy: PrivacyConfig = PrivacyConfig()
    """The promise."""
    server: ServerConfig = ServerConfig()
    """The optimizer."""
    executor: ExecutorConfig = ExecutorConfig()
    """Where clients compute, and how."""
    training: TrainingConfig = TrainingConfig()
    """How often to look and to save."""

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
        if self.privacy.shared is not None and self.data.made_up_by is not None:
            raise ValueError(
                f"privacy.shared with users that a {self.data.made_up_by} made up: who shares the "
                "ledger would take its ε for one of people; remove it"
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
                'covers; take "auto", which shares passes where none can, or "loop", or precision '
                '"float32"'
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


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, lay `key.path=value` overrides over it and validate.

    Raises:
        ConfigError: unreadable file, bad TOML, a malformed override or any invalid key.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise ConfigError(f"config: {path} is longer than {_LONGEST} bytes; is it a config?")
        raw = tomllib.loads(content.decode("utf-8-sig").replace("\r\n", "\n"))
    except FileNotFoundError:
        raise ConfigError(f"config: {path} is not there") from None
    except IsADirectoryError:
        raise ConfigError(f"config: {path} is a folder; give a TOML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"config: {path} is not UTF-8, from byte {error.start} on; convert it, with iconv for "
            "example"
        ) from None
    except OSError as error:
        raise ConfigError(f"config: cannot read {path}: {error}") from None
    except ConfigError:
        raise
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
        written = len((config := Config.model_validate(raw)).to_toml().encode())
    except ValidationError as error:
        problems = error.errors(include_url=False)
        lines = [explain(problem, Config) for problem in problems]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None
    except ValueError as error:  # a hexadecimal number of thousands of digits
        raise ConfigError(f"config: cannot be written: {error}") from None
    if wrong := list(_made_numbers(raw, config.model_dump())):
        raise ConfigError("\n".join(wrong))
    if written > _LONGEST:  # the run folder's, which is read again
        raise ConfigError(
            f"config: {written} bytes where it is written whole, and at most {_LONGEST} are read; "
            "give shorter lists"
        )
    return config


def _made_numbers(given: Any, made: Any, key: str = "") -> Iterator[str]:  # noqa: ANN401
    """Yield what is wrong with a true or a text that became a number: an ε of true would be 1."""
    if isinstance(given, Mapping) and isinstance(made, Mapping):
        for name, value in given.items():
            yield from _made_numbers(value, made.get(name), f"{key}.{name}" if key else name)
    elif isinstance(given, list | tuple) and isinstance(made, list | tuple):
        for number, (value, other) in enumerate(zip(given, made, strict=False)):
            yield from _made_numbers(value, other, f"{key}.{number}")
    elif isinstance(given, bool | str) and type(made) in (int, float):
        yield f"{key} = {given!r}: give a number"


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
