"""What a caller holds in memory, data or a network, as files that a config can name.

A run is what its config says, so that it can be resumed, repeated and sent to other machines: what
is given from Python is written to the cache folder under its own digest.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from fedsim.config import Config, load_config, parse_config
from fedsim.errors import ConfigError
from fedsim.utils import files

log = logging.getLogger(__name__)

PARTITION = "partition_id"  # the user column of what a partitioner gives


def with_given(
    config: object,
    data: object = None,
    model: object = None,
    tokenizer: object = None,
) -> Config:
    """Return the config with what is given laid over it; see `fedsim.run`.

    Raises:
        ConfigError: a wrong config, or something of a kind that is not read.
    """
    if isinstance(config, Config | Mapping):
        raw = config.model_dump(exclude_none=True) if isinstance(config, Config) else dict(config)
    elif isinstance(config, str | os.PathLike):
        raw = load_config(Path(config)).model_dump(exclude_none=True)
    else:
        kind = type(config).__name__
        raise ConfigError(f"config: a {kind}; give a TOML file's path, a dictionary or a Config")
    if data is not None:
        columns = {"user_column": PARTITION} if _is_partitioner(data) else {}
        raw["data"] = {**_section(raw, "data"), **columns, "source": _data_file(data)}
    if (model is None) != (tokenizer is None):
        raise ConfigError("model, tokenizer: give both or neither; they belong together")
    if model is not None:
        folder = _model_folder(model, tokenizer)
        raw["model"] = {**_section(raw, "model"), "name_or_path": folder}
    return parse_config(raw)


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = raw.get(name, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name}: a {type(section).__name__}; give a dictionary")
    return section


def _is_partitioner(data: object) -> bool:
    return hasattr(data, "load_partition") and hasattr(data, "num_partitions")


def _data_file(data: object) -> str:
    """Write rows as Parquet."""
    import datasets  # noqa: PLC0415  (slow, and needed for this alone)

    if _is_partitioner(data):
        if type(data).__name__ != "NaturalIdPartitioner":
            log.warning(
                "data: the partitions of a %s are made-up users: an ε is of them, and not of the "
                "people who wrote the text",
                type(data).__name__,
            )
        data = datasets.concatenate_datasets(
            [_named_partition(data, number) for number in range(data.num_partitions)]  # type: ignore[attr-defined]
        )
    elif isinstance(data, list):
        data = datasets.Dataset.from_list(data)
    elif type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        data = datasets.Dataset.from_pandas(cast(Any, data), preserve_index=False)
    if not isinstance(data, datasets.Dataset):
        raise ConfigError(
            f"data: a {type(data).__name__}; give a datasets.Dataset (of a DatasetDict one split; "
            "of a stream Dataset.from_generator), a pandas frame, a list of dictionaries or a "
            "partitioner of flwr-datasets; a path belongs in data.source"
        )
    found = data
    return _kept("data", lambda folder: found.to_parquet(str(folder / "rows.parquet")))


def _named_partition(partitioner: Any, number: int) -> Any:  # noqa: ANN401  (an optional package's)
    rows = partitioner.load_partition(number)
    return rows.add_column(PARTITION, [f"partition {number}"] * len(rows))


def _model_folder(model: object, tokenizer: object) -> str:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase  # noqa: PLC0415  (slow)

    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"model: a {type(model).__name__}; give a transformers.PreTrainedModel (of a PeftModel "
            "what merge_and_unload() returns); a path belongs in model.name_or_path"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ConfigError(f"tokenizer: a {type(tokenizer).__name__}; give one of transformers")

    def save(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return _kept("model", save)


def _kept(kind: str, save: Callable[[Path], object]) -> str:
    """Let `save` write into a folder of the cache that is named by what it wrote, once."""
    root = files.cache_dir() / "given"
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=root))
    try:
        save(scratch)
        digest = hashlib.sha256()
        for path in sorted(scratch.iterdir()):
            with path.open("rb") as content:
                inner = hashlib.file_digest(content, "sha256").hexdigest()
            digest.update(f"{path.name} {inner}\n".encode())
        folder = root / f"{kind}-{digest.hexdigest()[:32]}"
        if not folder.exists():  # one that is there stays, with its times: stores are keyed by them
            with suppress(FileExistsError):  # another process was faster, with the same content
                scratch.rename(folder)
        return str(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
