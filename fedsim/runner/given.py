"""Write data or a network from memory to files that a config can name.

A config describes a run completely, so that the run can be resumed and repeated. Objects given from
Python are therefore written to the cache folder, under a digest of their content.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsim.accounting import PROMISE
from fedsim.accounting.earlier_training import promise_folder
from fedsim.config import Config, load_config, parse_config
from fedsim.errors import ConfigError, kind_of
from fedsim.utils import files
from fedsim.utils.terminal import quietly

PARTITION = "partition_id"
"""The user column that fedsim adds to a partitioner's rows."""


def with_given(
    config: object,
    data: object = None,
    model: object = None,
    tokenizer: object = None,
) -> Config:
    """Return a config that names files of the given objects; see `fedsim.run`.

    Raises:
        ConfigError: an invalid config, or an object of an unsupported type.
    """
    if isinstance(config, Config):
        raw = config.model_dump(exclude_none=True)
    elif isinstance(config, Mapping):
        parse_config(dict(config))
        raw = {
            name: dict(part) if isinstance(part, Mapping) else part for name, part in config.items()
        }
    elif isinstance(config, str | os.PathLike):
        raw = load_config(Path(config)).model_dump(exclude_none=True)
    else:
        raise ConfigError(
            f"config: {kind_of(config)}; give a TOML file's path, a dictionary or a Config"
        )
    if (model is None) != (tokenizer is None):
        raise ConfigError("model, tokenizer: give both or neither; they belong together")
    if data is not None:
        raw["data"] = {**raw.get("data", {}), **_users_of(data), "source": "given"}
    if model is not None:
        raw["model"] = {**raw.get("model", {}), "name_or_path": "given"}
    parse_config(raw)  # validate before anything is written
    if data is not None:
        raw["data"]["source"] = _data_file(data)
    if model is not None:
        raw["model"]["name_or_path"] = _model_folder(model, tokenizer)
    return parse_config(raw)


def _users_of(data: object) -> dict[str, str]:
    """Return the [data] keys for the users that a partitioner of flwr-datasets defines."""
    if not _is_partitioner(data):
        return {}
    if _is_natural(data):
        return {"user_column": str(data._partition_by)}  # type: ignore[attr-defined]
    return {"user_column": PARTITION, "made_up_by": type(data).__name__}


def _is_partitioner(data: object) -> bool:
    return hasattr(type(data), "load_partition") and hasattr(type(data), "num_partitions")


def _is_natural(data: object) -> bool:
    """Whether each partition is one value of a column, so that the column names the users."""
    return hasattr(type(data), "partition_id_to_natural_id") and hasattr(data, "_partition_by")


def _data_file(data: Any) -> str:  # noqa: ANN401  (an optional package's class, or a list)
    """Write rows as JSON Lines or a `datasets.Dataset` as Parquet; return the folder."""
    import datasets  # noqa: PLC0415  (slow, and needed for this alone)

    if isinstance(data, list):
        lines = [_line(number, row) for number, row in enumerate(data)]
        _check_rows(lines)
        return _kept(
            "data", lambda to: (to / "rows.jsonl").write_text("".join(lines), "utf-8"), "rows"
        )
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        _check_rows(data)
        how = {"orient": "records", "lines": True, "date_format": "iso", "default_handler": str}
        save = lambda to: data.to_json(to / "rows.jsonl", double_precision=15, **how)  # noqa: E731
        return _kept("data", save, "rows")
    if _is_natural(data):
        data = data.dataset
    elif _is_partitioner(data):
        data = datasets.concatenate_datasets(
            [_named_partition(data, number) for number in range(data.num_partitions)]
        )
    if not isinstance(data, datasets.Dataset):
        raise ConfigError(
            f"data: {kind_of(data)}; give a datasets.Dataset (one split of a DatasetDict; "
            "Dataset.from_generator for a stream), a pandas frame, a list of dictionaries or a "
            "partitioner of flwr-datasets; a path belongs in data.source"
        )
    _check_rows(data)
    return _kept("data", lambda to: data.to_parquet(str(to / "rows.parquet")), "rows")


def _check_rows(data: Any) -> None:  # noqa: ANN401
    if not len(data):
        raise ConfigError("data: holds no rows; give one row per text, with its user")


def _line(number: int, row: object) -> str:
    try:
        if isinstance(row, dict):
            return json.dumps(row, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"data: row {number}: {error}; give strings and numbers") from None
    raise ConfigError(f"data: row {number} is {kind_of(row)}; give dictionaries")


def _named_partition(partitioner: Any, number: int) -> Any:  # noqa: ANN401  (an optional package's)
    rows = partitioner.load_partition(number)
    return rows.add_column(PARTITION, [f"partition {number}"] * len(rows))


def _model_folder(model: object, tokenizer: object) -> str:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase  # noqa: PLC0415  (slow)

    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"model: {kind_of(model)}; give a transformers.PreTrainedModel (for a PeftModel, "
            "the result of merge_and_unload()); a path belongs in model.name_or_path"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ConfigError(f"tokenizer: {kind_of(tokenizer)}; give a tokenizer of transformers")
    opened = str(getattr(model.config, "_name_or_path", "") or "")
    start = promise_folder(opened) if opened else None

    def save(folder: Path) -> None:
        with quietly():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        if start is not None:  # the promise of earlier training also covers changed weights
            shutil.copyfile(start / PROMISE, folder / PROMISE)

    return _kept("model", save, files.shown_name(opened).split("/")[-1] or "model")


def _kept(kind: str, save: Callable[[Path], object], name: str) -> str:
    """Let `save` write a folder `name` in the cache under a digest of its content; return it.

    The digest is keyed. Run folders hold the path, so a plain digest would let a reader test a
    guess of the text.
    """
    root = files.writable_cache_dir() / "given"
    root.mkdir(exist_ok=True)
    if not (root / ".key").exists():
        files.write_atomically(root / ".key", secrets.token_bytes(32), private=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=root))
    try:
        save(scratch)
        digest = hmac.new((root / ".key").read_bytes(), digestmod=hashlib.sha256)
        for path in sorted(scratch.iterdir()):
            digest.update(f"{path.name} {files.file_digest(path)}\n".encode())
        folder = root / f"{kind}-{digest.hexdigest()[:32]}" / name
        folder.parent.mkdir(exist_ok=True)
        with suppress(
            OSError
        ):  # it is there already; it keeps its times, as stores are keyed by them
            scratch.rename(folder)
        return str(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
