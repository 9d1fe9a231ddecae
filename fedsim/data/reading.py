"""The records and the token store of a config, and the fingerprint of its source."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedsim.data.building.build import build_store, terminal_progress
from fedsim.data.building.tokenise import BatchTokeniser, Encode
from fedsim.data.config import DataConfig
from fedsim.data.doubtful_names import doubtful_names
from fedsim.data.preparation.prepare import Prepared, fingerprint
from fedsim.data.rows import rows
from fedsim.data.sources.local_files import identity, left_out
from fedsim.data.sources.names import SPEAKER
from fedsim.data.sources.shakespeare import BUILT_IN
from fedsim.data.store import TokenStore
from fedsim.data.store.manifest import CO_OWNED_VERSION, FORMAT_VERSION, is_store
from fedsim.errors import ConfigError
from fedsim.utils import files as paths
from fedsim.utils.json_text import digest

if TYPE_CHECKING:  # torch takes seconds to import and is not needed here
    from fedsim.language_model import ChatModel, LanguageModel

_READING = 7  # increase it when the same source gives different users or texts


def records(config: DataConfig) -> Prepared:
    """Return the prepared records in the source's order.

    Raises:
        ConfigError: (while iterating) see `fedsim.data.rows.rows`.
    """
    chat = config.text_kind != "text"
    return Prepared(rows(config), config.preparation, co_owned=config.co_owned, chat=chat)


def encoder(config: DataConfig, model: LanguageModel) -> Encode:
    """Return the function that turns the config's records into tokens.

    Raises:
        ConfigError: the texts are conversations, and there is no chat template for them.
    """
    if config.text_kind == "text":
        return model.encoder
    field = f"data.{config.text_kind}_column = {config.text_from!r}"
    if not hasattr(model, "chat_encoder"):
        raise ConfigError(f"{field}: the model {model.name!r} does not support conversations")
    return cast("ChatModel", model).chat_encoder(config.counted, config.chat_template, field)


def source_fingerprint(config: DataConfig) -> str:
    """Return a SHA-256 (hex) that changes when the source or its preparation changes.

    It does not read the texts; see `fedsim.data.sources.local_files.identity`.
    """
    return digest([*identity(config.source), *fingerprint(config.preparation)])


def open_or_build(config: DataConfig, model: LanguageModel) -> TokenStore:
    """Open the store at `config.source` or in the cache; build it if it does not exist.

    The cache key covers everything that the content depends on, except the content behind a hub
    id, which is read only once.

    Raises:
        ConfigError: the source or a column is invalid, or a given store was built with another
            tokenizer, sequence length or cutting.
    """
    path = Path(config.source).expanduser()
    if is_store(path):
        return _fitting(TokenStore.open(path), config, model)
    _check_users(config)
    encode = encoder(config, model)
    destination = paths.cache_dir() / "stores" / cache_key(config, model, encode)
    if not destination.exists():
        paths.writable_cache_dir()
        with suppress(FileExistsError):  # another process built the same store first
            return build(config, model, encode, destination)
    return TokenStore.open(destination)


def build(
    config: DataConfig, model: LanguageModel, encode: Encode, destination: Path
) -> TokenStore:
    """Build the store of the config's records, and show progress.

    Args:
        config: source and treatment of the texts.
        model: model with the tokenizer.
        encode: result of `encoder`.
        destination: a folder that does not exist yet.

    Raises:
        ConfigError: see `build_store`.
    """
    _check_users(config)
    cut = (config.sequence_length, config.cutting, config.counted)
    tokeniser = BatchTokeniser(
        encode, model.vocabulary_size, *cut, drops_refused=config.drop_refused
    )
    with terminal_progress() as progress:
        return build_store(
            records(config),
            tokeniser,
            destination,
            tokenizer_fingerprint=model.tokenizer_fingerprint,
            source=config.source,
            co_owned=config.co_owned,
            user_column=config.users_from,
            text_kind=_text_kind(config, encode),
            progress=progress,
        )


_SHOWN = 5


def unread_files(config: DataConfig) -> list[str]:
    """Return a sentence that names ignored files in the source's folder; [] if there are none."""
    source = Path(config.source).expanduser()
    if not source.is_dir() or is_store(source) or not (files := left_out(config.source)):
        return []
    listed = ", ".join(files[:_SHOWN]) + (", …" if len(files) > _SHOWN else "")
    return [f"data.source = {config.source!r}: files that are not read ({len(files)}): {listed}"]


def notes(config: DataConfig, store: TokenStore) -> list[str]:
    """Return sentences on ignored files, and on names that may not be one person each.

    They contain private names: show them only to the owner of the data.
    """
    names = doubtful_names(store)
    return unread_files(config) + [
        f"Look at the data (private): {doubt.sentence}." for doubt in names
    ]


def _check_users(config: DataConfig) -> None:
    if config.source in BUILT_IN and config.user_column not in (None, SPEAKER):
        raise ConfigError(
            f"data.user_column = {config.user_column!r}: the users of {config.source!r} are the "
            "speakers of plays; leave it out"
        )


_TEXTS = ("text_column", "messages_column", "prompt_column", "completion_column")
_CONTENT = (
    "users_from",
    "sequence_length",
    "cutting",
    "counted",
    "owners_column",
    "owners_separator",
    "drop_refused",
    *_TEXTS,
)


def _text_kind(config: DataConfig, encode: Encode) -> dict[str, str]:
    """Return the manifest's entries on columns and chat template."""
    columns = {key: getattr(config, key) for key in _TEXTS}
    if config.text_kind != "text":
        del columns["text_column"]
    if getattr(encode, "wraps", False) or config.text_kind == "messages":
        columns["chat_template"] = _sha256(getattr(encode, "template", None) or "")
    return {key: value for key, value in columns.items() if value is not None}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def cache_key(config: DataConfig, model: LanguageModel, encode: Encode) -> str:
    """Return a SHA-256 (hex) of everything that the content of a store depends on.

    Args:
        config: source and treatment of the texts.
        model: model with the tokenizer.
        encode: result of `encoder`, which includes the chat template.
    """
    encoding = ("template", "wraps", "begin", "end", "special")
    version = CO_OWNED_VERSION if config.co_owned else FORMAT_VERSION
    parts = [
        *(version, _READING, source_fingerprint(config), model.tokenizer_fingerprint),
        *(getattr(config, key) for key in _CONTENT),
        *(getattr(encode, name, None) for name in encoding),
    ]
    return digest(parts)


def _fitting(store: TokenStore, config: DataConfig, model: LanguageModel) -> TokenStore:
    """Return the store; raise `ConfigError` if it does not fit the config."""
    manifest, source = store.manifest, config.source
    if manifest["tokenizer_fingerprint"] != model.tokenizer_fingerprint:
        raise ConfigError(
            f"data.source = {source!r}: the store was made with another tokenizer than that of "
            f"model.name_or_path = {model.name!r}; build it with --tokenizer {model.name}"
        )
    stored: dict[str, object] = {**manifest, **manifest.get("text_kind", {})}
    # Columns of conversations must match: the privacy statement names the parts it does not cover.
    texts = _TEXTS if "text_kind" in manifest else ()
    users = ("user_column",) if "user_column" in manifest else ()
    configured = {key: getattr(config, key) for key in (*texts, "sequence_length", "cutting")}
    configured |= {"loss_on": config.counted} | {key: getattr(config, key) for key in users}
    for key, value in configured.items():
        optional = key in ("text_column", "user_column")
        is_default = optional and value == DataConfig.model_fields[key].default
        if value != stored.get(key) and not is_default:
            raise ConfigError(
                f"data.{key} = {value!r}: the store {source!r} was made with "
                f"{stored.get(key)!r}; set the key to that value, or build another store"
            )
    template = config.chat_template
    if texts and template not in (None, "tokenizer"):
        content = getattr(encoder(config, model), "template", None) or ""
        if _sha256(content) != stored.get("chat_template"):
            raise ConfigError(
                f"data.chat_template = {template!r}: the store {source!r} was made with another; "
                "leave it out, or build another store"
            )
    if config.co_owned != ("owners" in manifest):
        reason = "has no owners of its texts; build another store, with --set data.owners_column"
        if "owners" in manifest:
            reason = "has texts of several owners; set data.owners_column to protect all of them"
        raise ConfigError(
            f"data.owners_column = {config.owners_column!r}: the store {source!r} {reason}"
        )
    return store
