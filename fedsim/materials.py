"""Materials: the model, the texts and their split, loaded once a process by server and workers."""

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

_SAMPLED = 64  # examples that are decoded


@dataclass(frozen=True, eq=False)
class Materials:
    """The model, texts and split that a run trains on.

    Attributes:
        model: the starting point.
        store: every text, tokenised, by user.
        split: which users and examples are trained on, and which are held out.
        seed: what every choice for a user is drawn from: who and what is held out, the pool, the
            examples of a round, their order, dropout. The config's seed; secret with secure noise.
        earlier_training: sentences on what the starting point was trained on before.
    """

    model: LanguageModel
    store: TokenStore
    split: Split
    seed: int
    earlier_training: tuple[str, ...] = ()

    @cached_property
    def start_digest(self) -> str:
        """The `network_digest` of the network that training starts from."""
        return network_digest(self.model, self.model.initial_parameters())

    @cached_property
    def frozen_digest(self) -> str:
        """A SHA-256 (hex) of the weights that stay as they are; "" where there are none.

        Server and workers compare it: they send each other only what moves.
        """
        weights, places = module_of(self.model).state_dict(), getattr(self.model, "places", {})
        frozen = {name: weights[name] for name in weights.keys() - places.keys()}
        return parameters_digest(frozen) if frozen else ""

    @property
    def sources(self) -> dict[str, str]:
        """Checksums of the text and of the frozen weights: a run goes on with the same ones."""
        return {"data.source": self.text_digest, "model.name_or_path": self.frozen_digest}

    @property
    def num_protected(self) -> int:
        """How many are promised something: training users, or all owners of any text."""
        graph = self.store.graph
        return self.split.num_users if graph is None else graph.num_owners

    @cached_property
    def text_digest(self) -> str:
        """A SHA-256 (hex) of the stored text, with `seed` in front: who has no seed learns nothing.

        Server and workers compare it, so that all work on the same text.
        """
        facts = [self.seed, self.store.manifest["files"]]
        return digest(facts)


def load_materials(
    seed: int, data: DataConfig, model: ModelConfig, device: str, data_seed: int | None = None
) -> Materials:
    """Load or build everything that the config names.

    Cached, since server and client share it, for as long as the files of text and model stay as
    they are.

    Args:
        seed: of the config: what the starting model is drawn from.
        data: where the texts are and how they are split.
        model: where training starts.
        device: in torch's spelling.
        data_seed: becomes `Materials.seed`; `seed` by default.

    Raises:
        ConfigError: an unknown model, an unreadable source, a missing column, a preparation of
            what is a store already, too few users to make canaries of, a model that `check_causal`
            refuses, weights that are not finite, texts that the tokenizer knows nothing of.
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
    """Load a starting point and check it: once for the runs of a sweep, whatever text they read."""
    loaded = load_model(model, seed, sequence_length, device)
    field = f"model.name_or_path = {model.name_or_path!r}"
    check_finite(loaded, field)
    check_causal(loaded, field, sequence_length)
    return loaded


def _version(place: str) -> tuple[object, ...]:
    """Return what changes when a file, or a file in a folder, does; () for what is not there."""
    path = Path(place).expanduser()
    if not place or not path.exists():
        return ()
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return tuple(stamp(file) for file in files if file.is_file())


def new_data_seed(config: Config) -> int:
    """Return what the choices of a run that begins now are drawn from; see `Materials.seed`.

    The config's seed where noise is seeded; else 128 bits of the operating system.
    """
    return config.seed if config.privacy.noise == "seeded" else secrets.randbits(128)


def load_model(
    config: ModelConfig, seed: int = 0, sequence_length: int = 64, device: str = "cpu"
) -> LanguageModel:
    """Load a registered model by its name, a folder that one saved, or what transformers opens.

    A folder whose `config.json` says `"fedsim_model": NAME` is opened by the loader of that name,
    which must be installed; any other folder, GGUF file or hub id by the one for transformers.

    Raises:
        ConfigError: it cannot be opened, or its loader does not take a key.
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
        if getattr(model, key, default) != (asked := getattr(config, key)):
            raise ConfigError(
                f"model.{key} = {asked!r}: the loader of models {name!r} does not take it; "
                "leave it out"
            )
    return model


def loader_name(name_or_path: str) -> str:
    """Return the name of the loader (entry points `fedsim.models`) of a model."""
    if name_or_path in names("models"):
        return name_or_path
    return _saved_by(Path(name_or_path).expanduser()) or "transformers"


def _saved_by(folder: Path) -> str | None:
    """Return the name of the loader that a saved folder asks for, or None."""
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        return None
    name = config.get("fedsim_model") if isinstance(config, dict) else None
    return name if isinstance(name, str) else None


def check_not_prepared_twice(data: DataConfig) -> None:
    """Raise `ConfigError` if a store is to be prepared: its texts are tokens already."""
    if data.preparation and is_store(Path(data.source).expanduser()):
        named = "data.preparation" if data.recipe is None else f"data.recipe = {data.recipe!r}"
        raise ConfigError(
            f"{named}: data.source = {data.source!r} is a store, which was prepared when it was "
            "built; leave the preparation out, or give the texts as the source"
        )


def materials_of(
    config: Config, data_seed: int | None = None, device: str | None = None
) -> Materials:
    """Load what a config names, by default on the device that a run of it computes on."""
    device = device or default_device(config.executor.gpus_per_worker)
    return load_materials(config.seed, config.data, config.model, device, data_seed)


def load_beside(config: Config, model: ModelConfig) -> LanguageModel:
    """Load another model for a config's texts, on the device that a run of it computes on."""
    device = default_device(config.executor.gpus_per_worker)
    return load_model(model, config.seed, config.data.sequence_length, device)


def default_device(gpus_per_worker: float) -> str:
    """Return where this process computes: "cpu", or as many GPUs as there are for a worker."""
    visible = min(gpus_per_worker, torch.cuda.device_count())
    return gpus(visible) if visible > 0 else "cpu"


def gpus(count: float) -> str:
    """Return the first GPUs that a process sees, in torch's spelling, commas between them."""
    return "cuda" if count < 2 else ",".join(f"cuda:{number}" for number in range(int(count)))


def check_device(device: str) -> None:
    """Raise `ConfigError` where a worker was given more GPUs than torch can see."""
    asked, seen = device.count("cuda"), torch.cuda.device_count()
    if asked > seen:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        raise ConfigError(
            f"executor.gpus_per_worker: the worker got {asked} of the GPUs {visible!r}, but torch "
            f"{torch.__version__} sees {seen} CUDA devices there; install a CUDA build of torch "
            f"on every machine, or set gpus_per_worker = {seen}"
        )


def worker_device(config: ExecutorConfig, of_server: str) -> str:
    """Return where workers compute: in this process as the server; elsewhere, on what they got.

    Ray shows a worker the GPU that it was given a share of and no other, as the first.
    """
    if config.grid == "in-process":
        return of_server
    return gpus(config.gpus_per_worker) if config.gpus_per_worker > 0 else "cpu"
