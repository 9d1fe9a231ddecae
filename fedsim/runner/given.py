"""What a caller holds in memory, data or a network, as files that a config can name.

A run is what its config says, so that it can be resumed, repeated and sent to other machines: what
is given from Python is written to the cache folder under its own digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sized
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from fedsim.accounting import GIVEN, PROMISE, is_unfinished
from fedsim.accounting.earlier_training import folder_of, given_note, promise_of
from fedsim.config import Config, load_config, parse_config
from fedsim.data.sources.names import user_name
from fedsim.errors import ConfigError, kind_of
from fedsim.utils import files
from fedsim.utils.terminal import quietly

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_GIVEN = "given"  # in place of what is not written yet
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
    if isinstance(config, Config) and data is model is tokenizer is None:
        return config
    if isinstance(config, Config | Mapping):
        raw = config.model_dump(exclude_none=True) if isinstance(config, Config) else dict(config)
    elif isinstance(config, str | os.PathLike):
        raw = load_config(Path(config)).model_dump(exclude_none=True)
    else:
        raise ConfigError(
            f"config: {kind_of(config)}; give a TOML file's path, a dictionary or a Config"
        )
    if (model is None) != (tokenizer is None):
        raise ConfigError("model, tokenizer: give both or neither; they belong together")
    if data is not None:
        raw["data"] = {**_section(raw, "data"), **_told(data), "source": _GIVEN}
    if model is not None:
        raw["model"] = {**_section(raw, "model"), "name_or_path": _GIVEN}
    found = parse_config(raw)  # first: a text is not written for a config that is refused
    if _is_frame(data):
        _check_columns(data)
        for key in ("user_column", "owners_column"):
            _check_digits(data, getattr(found.data, key), key)
    if data is not None:
        raw["data"]["source"] = _data_file(data)
    if model is not None:
        raw["model"]["name_or_path"] = _model_folder(model, tokenizer)
    return parse_config(raw)


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = raw.get(name, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name}: {kind_of(section)}; give a dictionary")
    return section


def _told(data: object) -> dict[str, str]:
    """Return the keys of [data] that a partitioner decides: who the users are."""
    if not _is_partitioner(data):
        return {}
    if _is_natural(data):
        return {"user_column": str(data._partition_by)}  # type: ignore[attr-defined]
    return {"user_column": PARTITION, "made_up_by": type(data).__name__}


def _is_partitioner(data: object) -> bool:
    kind = type(data)  # asked for by the object, the number is counted, which a null id breaks off
    return hasattr(kind, "load_partition") and hasattr(kind, "num_partitions")


def _is_natural(data: object) -> bool:
    """Whether a partitioner makes a partition of each value of a column: then that names users."""
    return hasattr(type(data), "partition_id_to_natural_id") and hasattr(data, "_partition_by")


def _data_file(data: object) -> str:
    """Write rows as Parquet, or as JSON Lines where each value has a type of its own.

    Given one type for a column, one user's name or number would change how others are written.
    """
    import datasets  # noqa: PLC0415  (slow, and needed for this alone)

    if isinstance(data, list):
        _check_rows(data)
        text = "".join(_line(number, row) for number, row in enumerate(data))
        return _kept("data", lambda to: (to / "rows.jsonl").write_text(text, "utf-8"), "rows")
    if _is_frame(data):
        frame: Any = data
        return _data_file([_plain(row) for row in frame.to_dict("records")])
    if _is_natural(data):
        data = data.dataset  # type: ignore[attr-defined]
    elif _is_partitioner(data):
        partitions: Any = data
        data = datasets.concatenate_datasets(
            [_named_partition(partitions, number) for number in range(partitions.num_partitions)]
        )
    if not isinstance(data, datasets.Dataset):
        raise ConfigError(
            f"data: {kind_of(data)}; give a datasets.Dataset (of a DatasetDict one split; "
            "of a stream Dataset.from_generator), a pandas frame, a list of dictionaries or a "
            "partitioner of flwr-datasets; a path belongs in data.source"
        )
    found = data
    _check_rows(found)
    return _kept("data", lambda to: found.to_parquet(str(to / "rows.parquet")), "rows")


def _check_rows(data: Sized) -> None:
    if not len(data):
        raise ConfigError("data: holds no rows; give one a text, with its user")


def _is_frame(data: object) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def _check_columns(frame: Any) -> None:  # noqa: ANN401
    """Raise `ConfigError` where a name is of several columns: rows would keep the last of them."""
    if not frame.columns.is_unique or frame.columns.nlevels > 1:
        raise ConfigError(
            f"data: the frame's columns are {list(frame.columns)[:8]}; give each a name of its own"
        )


def _check_digits(frame: Any, column: str | None, key: str) -> None:  # noqa: ANN401
    """Refuse names of few bits that have lost digits: JSON does not say of how many they were."""
    for cell in frame[column].array if column in frame.columns else ():
        for value in cell if isinstance(cell, (list, tuple, np.ndarray)) else [cell]:
            if isinstance(value, np.floating):
                user_name(value, f"data.{key} = {column!r}")


def _line(number: int, row: object) -> str:
    if not isinstance(row, dict):
        raise ConfigError(f"data: row {number} is {kind_of(row)}; give dictionaries")
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"data: row {number}: {error}; give strings and numbers") from None


def _plain(value: Any) -> Any:  # noqa: ANN401  (whatever a frame holds)
    """Return a value of a frame as JSON has it, in full: no digits lost, a missing one as null."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, Decimal):
        value = user_name(value, "data")
    if isinstance(value, (date, UUID)):
        return str(value)
    return value


def _named_partition(partitioner: Any, number: int) -> Any:  # noqa: ANN401  (an optional package's)
    rows = partitioner.load_partition(number)
    return rows.add_column(PARTITION, [f"partition {number}"] * len(rows))


def _model_folder(model: object, tokenizer: object) -> str:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase  # noqa: PLC0415  (slow)

    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"model: {kind_of(model)}; give a transformers.PreTrainedModel (of a PeftModel "
            "what merge_and_unload() returns); a path belongs in model.name_or_path"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ConfigError(f"tokenizer: {kind_of(tokenizer)}; give one of transformers")

    named = str(getattr(model.config, "_name_or_path", "") or "")
    opened = Path(named).expanduser().resolve()
    unknown = False
    if named and not opened.exists():
        promised, unknown = _in_cache(named, PROMISE)
        opened = promised or _in_cache(named, "config.json")[0] or opened
    elif named:
        opened = folder_of(named)
    unchanged = bool(named) and opened.is_dir() and _holds(opened, model)

    a_path = Path(named).expanduser().exists() or named.startswith(("/", ".", "~"))
    shown = opened.name if a_path else named

    def save(folder: Path) -> None:
        with quietly():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        if unchanged and (opened / PROMISE).is_file():  # it goes with its weights, to the byte
            shutil.copyfile(opened / PROMISE, folder / PROMISE)
            for pattern in ("*.safetensors", "*.safetensors.index.json"):
                for path in folder.glob(pattern):
                    path.unlink()
                for path in opened.glob(pattern):
                    shutil.copyfile(path, folder / path.name)
        elif named and (
            not unchanged or unknown or (opened / GIVEN).exists() or is_unfinished(opened)
        ):
            note = {
                "opened": shown,
                "unknown": unknown,
                "changed": not unchanged,
                "promise": promise_of(opened),
                "unfinished": is_unfinished(opened),
                "given": (given_note(opened) or {}) if (opened / GIVEN).exists() else None,
            }
            (folder / GIVEN).write_text(json.dumps(note), encoding="utf-8")

    return _kept("model", save, shown.split("/")[-1] if unchanged else "model")


def _in_cache(name: str, file: str) -> tuple[Path | None, bool]:
    """Return the folder of the hub's cache that has a file, and whether that is not known."""
    try:
        return files.hub_folder(name, file), False
    except LookupError:
        return None, True


def _holds(folder: Path, model: PreTrainedModel) -> bool:
    """Whether a folder has just the weights of a network that was opened from it."""
    try:
        with quietly():
            there = type(model).from_pretrained(folder, dtype=model.dtype).state_dict()
    except Exception:  # the folder is another by now: transformers has errors of many kinds
        return False
    held = model.state_dict()
    return there.keys() == held.keys() and all(
        value.shape == held[name].shape and bool((value == held[name].cpu()).all())
        for name, value in there.items()
    )


def _key(root: Path) -> bytes:
    """Return the secret of the cache, made when first asked for."""
    path = root / ".key"
    if not path.exists():
        scratch = root / f".key-{secrets.token_hex(8)}"
        scratch.touch(0o600)
        scratch.write_bytes(secrets.token_bytes(32))
        with suppress(FileExistsError):  # another process was faster
            os.link(scratch, path)
        scratch.unlink()
    return path.read_bytes()


def _kept(kind: str, save: Callable[[Path], object], name: str) -> str:
    """Let `save` write into a folder `name` of the cache, below a digest of what it wrote, once."""
    root = files.cache_dir() / "given"
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=root))
    try:
        save(scratch)
        digest = hashlib.sha256()
        for path in sorted(scratch.iterdir()):
            digest.update(f"{path.name} {files.file_digest(path)}\n".encode())
        # Under a key of this cache: the path is in the run folder, where whoever has a guess of the
        # text could compare a plain digest.
        keyed = hmac.new(_key(root), digest.digest(), "sha256").hexdigest()
        folder = root / f"{kind}-{keyed[:32]}" / name
        folder.parent.mkdir(exist_ok=True)
        if not folder.exists():  # one that is there stays, with its times: stores are keyed by them
            with suppress(FileExistsError):  # another process was faster, with the same content
                scratch.rename(folder)
        return str(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
