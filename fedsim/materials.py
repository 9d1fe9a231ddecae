"""Materials: the model, the texts and their split, loaded once per process."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch

from fedsim.accounting.earlier_training import earlier_training
from fedsim.config import Config, ExecutorConfig, ModelConfig
from fedsim.data.canaries import with_canaries
from fedsim.data.config import DataConfig
from fedsim.data.reading import open_or_build
from fedsim.data.split import Split, split_store
from fedsim.data.store import TokenStore
from fedsim.data.store.manifest import is_store
from fedsim.errors import ConfigError
from fedsim.language_model import (
    LanguageModel,
    check_causal,
    check_finite,
    check_reads,
    module_of,
    network_digest,
)
from fedsim.registry import names, resolve
from fedsim.tensors import parameters_digest
from fedsim.utils.files import stamp
from fedsim.utils.json_text import digest, read_json

_SAMPLED = 64  # examples to decode when the tokenizer is checked


@dataclass(frozen=True, eq=False)
class Materials:
    """The model, texts and split of a run.

    Attributes:
        model: the model before training.
        store: all texts, tokenised, by user.
        split: the training and the held-out users and examples.
        seed: seed of all draws for users: held-out users and examples, pool, examples of a round
            and their order, dropout. The config's seed; a secret with secure noise.
        earlier_training: sentences on the data of the model's earlier training.
    """

    model: LanguageModel
    store: TokenStore
    split: Split
    seed: int
    earlier_training: tuple[str, ...] = ()

    @cached_property
    def start_digest(self) -> str:
        """The `network_digest` of the network before training."""
        return network_digest(self.model, self.model.initial_parameters())

    @cached_property
    def frozen_digest(self) -> str:
        """A SHA-256 (hex) of the frozen weights; "" if there are none.

        Server and workers compare it: they send each other only the trainable parameters.
        """
        weights, places = module_of(self.model).state_dict(), getattr(self.model, "places", {})
        frozen = {name: weights[name] for name in weights.keys() - places.keys()}
        return parameters_digest(frozen) if frozen else ""

    @property
    def sources(self) -> dict[str, str]:
        """Checksums of the text and of the frozen weights; a resumed run must have the same."""
        return {"data.source": self.text_digest, "model.name_or_path": self.frozen_digest}

    @property
    def num_protected(self) -> int:
        """Number of users or owners under the guarantee: training users, or owners of any text."""
        graph = self.store.graph
        return self.split.num_users if graph is None else graph.num_owners

    @cached_property
    def text_digest(self) -> str:
        """A SHA-256 (hex) of `seed` and the stored text; a secret seed hides the text.

        Server and workers compare it, so that all use the same text.
        """
        facts = [self.seed, self.store.manifest["files"]]
        return digest(facts)


def load_materials(
    seed: int, data: DataConfig, model: ModelConfig, device: str, data_seed: int | None = None
) -> Materials:
    """Load or build the model, texts and split of a config.

    The result is cached until the files of text or model change, as server and client share it.

    Args:
        seed: the config's seed, from which an untrained model is drawn.
        data: source of the texts, and their split.
        model: the model before training.
        device: torch device, such as "cpu" or "cuda".
        data_seed: becomes `Materials.seed`; `seed` by default.

    Raises:
        ConfigError: the model is unknown, `check_causal` refuses it, or its weights are not finite;
            the source is unreadable, lacks a column, or is a store with a preparation; there are
            too few users for the canaries; the tokenizer knows no token of the texts.
    """
    choices = seed if data_seed is None else data_seed
    read = [file for step in data.preparation for file in step.reads_files()]
    others = (model.adapter or "", data.chat_template or "")
    places = [data.source, model.name_or_path, *others, *read]
    return _load(seed, data, model, device, choices, *map(_version, places))


@lru_cache(maxsize=2)
def _load(
    seed: int,
    data: DataConfig,
    model: ModelConfig,
    device: str,
    choices: int,
    *_versions: tuple[object, ...],
) -> Materials:
    of_model = map(_version, [model.name_or_path, model.adapter or ""])
    language_model = _start(model, seed, data.sequence_length, device, *of_model)
    check_not_prepared_twice(data)
    whole = open_or_build(data, language_model)
    some = np.linspace(0, whole.num_examples - 1, min(_SAMPLED, whole.num_examples)).astype(int)
    field = f"model.name_or_path = {model.name_or_path!r}"
    check_reads(language_model, [whole.example(number) for number in some], field)
    store, canaries = with_canaries(whole, data.canaries, choices, language_model.vocabulary_size)
    split = split_store(
        store,
        choices,
        data.held_out_examples,
        data.held_out_users,
        rule=data.held_out_rule,
        limit=data.held_out_limit,
        from_users=data.held_out_from,
        canaries=canaries,
    )
    earlier = earlier_training(model.name_or_path, model.adapter)
    return Materials(language_model, store, split, choices, earlier)


@lru_cache(maxsize=1)
def _start(
    model: ModelConfig,
    seed: int,
    sequence_length: int,
    device: str,
    *_versions: tuple[object, ...],
) -> LanguageModel:
    """Load and check a model; cached apart from the texts, for sweeps over several texts."""
    loaded = load_model(model, seed, sequence_length, device)
    field = f"model.name_or_path = {model.name_or_path!r}"
    check_finite(loaded, field)
    check_causal(loaded, field, sequence_length)
    return loaded


def _version(place: str) -> tuple[object, ...]:
    """Return the stamps of a file or of all files in a folder; () if it does not exist."""
    path = Path(place).expanduser()
    if not place or not path.exists():
        return ()
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return tuple(stamp(file) for file in files if file.is_file())


def new_data_seed(config: Config) -> int:
    """Return the `Materials.seed` of a new run.

    With seeded noise the config's seed; with secure noise 128 random bits of the operating system.
    """
    return config.seed if config.privacy.noise == "seeded" else secrets.randbits(128)


def load_model(
    config: ModelConfig, seed: int = 0, sequence_length: int = 64, device: str = "cpu"
) -> LanguageModel:
    """Load a model: a registered name, a saved folder, or a model that transformers opens.

    If the folder's `config.json` has `"fedsim_model": NAME`, the loader registered as NAME opens
    it. transformers opens any other folder, GGUF file or hub id.

    Raises:
        ConfigError: the model cannot be opened, or its loader does not support a key.
    """
    name = loader_name(config.name_or_path)
    field = "model.name_or_path"
    if name not in (config.name_or_path, "transformers"):
        field = f"model.name_or_path = {config.name_or_path!r}: fedsim_model in its config.json"
    loader = resolve("models", name, field)
    if "," in device and name != "transformers":
        raise ConfigError(
            f"executor.gpus_per_worker: the loader of models {name!r} holds a network on one GPU; "
            "give at most 1"
        )
    model: LanguageModel = loader(config, seed=seed, sequence_length=sequence_length, device=device)
    for key, default in (("attention", "eager"), ("quantisation", None)):
        if getattr(model, key, default) != (requested := getattr(config, key)):
            raise ConfigError(
                f"model.{key} = {requested!r}: the loader of models {name!r} does not support it; "
                "leave it out"
            )
    return model


def loader_name(name_or_path: str) -> str:
    """Return the name of the loader (entry points `fedsim.models`) of a model."""
    if name_or_path in names("models"):
        return name_or_path
    return _saved_by(Path(name_or_path).expanduser()) or "transformers"


def _saved_by(folder: Path) -> str | None:
    """Return the loader named in a saved folder's `config.json`, or None."""
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        return None
    name = config.get("fedsim_model") if isinstance(config, dict) else None
    return name if isinstance(name, str) else None


def check_not_prepared_twice(data: DataConfig) -> None:
    """Raise `ConfigError` for a preparation of a store: its texts are already tokens."""
    if data.preparation and is_store(Path(data.source).expanduser()):
        named = "data.preparation" if data.recipe is None else f"data.recipe = {data.recipe!r}"
        raise ConfigError(
            f"{named}: data.source = {data.source!r} is a store; texts are prepared before a store "
            "is built; leave the preparation out, or give the texts as the source"
        )


def materials_of(
    config: Config, data_seed: int | None = None, device: str | None = None
) -> Materials:
    """Load the materials of a config, by default on the device of its runs."""
    device = device or default_device(config.executor.gpus_per_worker)
    return load_materials(config.seed, config.data, config.model, device, data_seed)


def load_beside(config: Config, model: ModelConfig) -> LanguageModel:
    """Load another model for a config's texts, on the device of its runs."""
    device = default_device(config.executor.gpus_per_worker)
    return load_model(model, config.seed, config.data.sequence_length, device)


def default_device(gpus_per_worker: float) -> str:
    """Return the device of this process: "cpu", or up to `gpus_per_worker` visible GPUs."""
    visible = min(gpus_per_worker, torch.cuda.device_count())
    return gpus(visible) if visible > 0 else "cpu"


def gpus(count: float) -> str:
    """Return the first `count` visible GPUs as torch devices, separated by commas."""
    return "cuda" if count < 2 else ",".join(f"cuda:{number}" for number in range(int(count)))


def check_device(device: str) -> None:
    """Raise `ConfigError` if a worker has more GPUs than torch sees."""
    asked, seen = device.count("cuda"), torch.cuda.device_count()
    if asked > seen:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        raise ConfigError(
            f"executor.gpus_per_worker: the worker got {asked} of the GPUs {visible!r}, but torch "
            f"{torch.__version__} sees {seen} CUDA devices there; install a CUDA build of torch "
            f"on every machine, or set gpus_per_worker = {seen}"
        )


def worker_device(config: ExecutorConfig, of_server: str) -> str:
    """Return the workers' device: the server's if in-process, else their GPUs, or "cpu".

    Ray shows a worker only its own GPUs, numbered from 0.
    """
    if config.grid == "in-process":
        return of_server
    return gpus(config.gpus_per_worker) if config.gpus_per_worker > 0 else "cpu"
