"""Conversations from the source to the store: what is read, cut, kept, and which tokens count."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.config import ModelConfig
from fedsim.data.building.tokenise import REFUSED, UNCOUNTED, BatchTokeniser
from fedsim.data.config import DataConfig
from fedsim.data.inspection import inspect_store
from fedsim.data.reading import build as build_from
from fedsim.data.reading import encoder, open_or_build, records
from fedsim.data.sources.records import NULL_TEXT, Record
from fedsim.data.store import TokenStore
from fedsim.data.store.manifest import Cutting
from fedsim.errors import ConfigError
from fedsim.language_model import LanguageModel
from fedsim.materials import load_model
from tests.conftest import write_rows
from tests.unit.data.data_samples import build, pairs

TALK = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]


def letters(texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
    return [np.frombuffer(text.encode(), np.uint8).astype(np.int64) for text in texts]


def small_ones(texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
    """The letters of texts; capital ones are context tokens."""
    return [np.where((ids >= 65) & (ids <= 90), ~ids, ids) for ids in letters(texts)]


def read(source: Path, **data: object) -> list[tuple[str | None, object]]:
    config = DataConfig.model_validate({"source": str(source), "user_column": "u", **data})
    return [(user, json.loads(text) if text else text) for user, text in pairs(config)]


def test_messages_of_every_kind_of_file(tmp_path: Path) -> None:
    """Other keys of a message are left out; a CSV has JSON in its cells."""
    extra = [{**message, "language": "English"} for message in TALK]
    rows: list[dict[str, object]] = [
        {"u": "a", "m": TALK},
        {"u": "b", "m": extra},
        {"u": "c", "m": None},
        {"u": "d", "m": []},
    ]
    wanted = [("a", {"messages": TALK}), ("b", {"messages": TALK}), ("c", None), ("d", "")]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    with (tmp_path / "x.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("u", "m"), *((row["u"], json.dumps(row["m"])) for row in rows)])
    for source in (write_rows(tmp_path / "x.jsonl", rows), tmp_path / "x.parquet"):
        assert read(source, messages_column="m") == wanted
    assert read(tmp_path / "x.csv", messages_column="m")[:2] == wanted[:2]


def test_prompts_are_strings_or_messages(tmp_path: Path) -> None:
    columns = {"prompt_column": "p", "completion_column": "c"}
    strings = write_rows(
        tmp_path / "s.jsonl", [{"u": "a", "p": "Q", "c": "A"}, {"u": "a", "p": "Q"}]
    )
    assert read(strings, **columns) == [("a", {"prompt": "Q", "completion": "A"}), ("a", None)]
    lists = write_rows(tmp_path / "l.jsonl", [{"u": "a", "p": TALK[:1], "c": TALK[1:]}])
    assert read(lists, **columns) == [("a", {"prompt": TALK[:1], "completion": TALK[1:]})]
    mixed = write_rows(tmp_path / "m.jsonl", [{"u": "a", "p": "Q", "c": TALK}])
    with pytest.raises(
        ConfigError, match=r"completion_column = 'c': row 1: only one of them is a string"
    ):
        read(mixed, **columns)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hello", "a string"),
        (["hello"], "message 1 is a str"),
        (
            [{"from": "human", "value": "hello"}],
            "message 1 has no role that is a string",
        ),
        ([{"role": "user", "content": [1]}], "message 1 has no content that is a string"),
        ([*TALK, {"role": "assistant"}], f"message {len(TALK) + 1} has no content"),
        ({"role": "user"}, "a dict"),
    ],
)
def test_what_is_no_conversation_is_named(messages: object, said: str, tmp_path: Path) -> None:
    """By the number of the first row, and without its text."""
    fine: dict[str, object] = {"u": "a", "m": TALK}
    wrong = {"u": "a", "m": messages}
    source = write_rows(tmp_path / "x.jsonl", [*[fine] * 1003, wrong, fine, wrong])
    with pytest.raises(ConfigError, match=rf"^data.messages_column = 'm': row 1004: {said}") as met:
        read(source, messages_column="m")
    assert "; wanted: lists of messages" in str(met.value)
    assert "hello" not in str(met.value)


def test_a_step_that_rewrites_texts_is_refused() -> None:
    steps = [{"step": "strip-quotes"}]
    with pytest.raises(ValueError, match="strip-quotes: changes plain texts"):
        DataConfig.model_validate({"messages_column": "m", "preparation": steps, "source": "x"})


def test_the_built_in_answers_are_each_speakers_own() -> None:
    talks = pairs(DataConfig(source="shakespeare-chat", messages_column="messages"))
    speeches: dict[str | None, set[str | None]] = {}
    for user, text in pairs(DataConfig()):
        speeches.setdefault(user, set()).add(text)
    assert len(talks) > 10_000
    for user, text in talks[:200]:
        line, answer = json.loads(text or "")["messages"]
        assert (line["role"], answer["role"]) == ("user", "assistant")
        assert answer["content"] in speeches[user]


def pieces(ids: npt.NDArray[np.integer], lengths: npt.NDArray[np.int64]) -> list[list[int]]:
    ends = np.cumsum(lengths).tolist()
    return [ids[end - size : end].tolist() for end, size in zip(ends, lengths, strict=True)]


@given(
    st.lists(st.text("abcXYZ", min_size=1, max_size=40), max_size=6),
    st.sampled_from(["split", "truncate"]),
    st.integers(2, 9),
)
def test_cutting_keeps_which_tokens_count(texts: list[str], cutting: Cutting, longest: int) -> None:
    """The pieces are those of all tokens, less the ones in which no prediction counts."""
    batch = [Record("u", text) for text in texts]
    cut = BatchTokeniser(small_ones, 256, longest, cutting, "assistant")(batch)
    whole = BatchTokeniser(letters, 256, longest, cutting)(batch)
    before = pieces(whole.ids, whole.lengths)
    counting = [piece for piece in before if any(letter >= 97 for letter in piece[1:])]
    after = pieces(cut.ids, cut.lengths)
    assert [[~token if token < 0 else token for token in piece] for piece in after] == counting
    assert all((token < 0) == (max(token, ~token) < 97) for piece in after for token in piece)
    assert cut.dropped[UNCOUNTED] == len(before) - len(counting)
    assert cut.pieces.sum() == len(counting)
    assert len(cut.users) == len(cut.pieces) == len(cut.begins_as_ends)
    assert (cut.pieces > 0).all()


def test_a_store_gives_back_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a token that counts is not in it; padding and ids are as ever."""
    monkeypatch.setattr("fedsim.data.store.token_store.AT_ONCE", 5)
    rows = [("a", "abC"), ("b", "XYZ"), ("a", "Xy"), ("c", "abcdefghXYZabc")]
    store = build(rows, tmp_path / "store", encode=small_ones, loss_on="assistant")
    assert (store.num_users, store.manifest["loss_on"]) == (2, "assistant")
    assert store.manifest["dtype"] == "int16"
    assert store.manifest["dropped"][UNCOUNTED] == 1
    tokens, _ = store.padded(np.arange(4))
    assert store.example(0).tolist() == [97, 98, ~67]
    assert tokens[1].tolist() == [~88, 121, 0, 0, 0, 0, 0, 0]
    assert tokens[3].tolist() == [104, ~88, ~89, ~90, 97, 98, 99, 0]
    counted = inspect_store(store)["counted_tokens"]
    assert json.dumps(counted) == f"{1 + 1 + 7 + 3}"  # a first token is not predicted
    store.verify()


@pytest.mark.parametrize(
    ("size", "on", "dtype"),
    [
        (1 << 15, "assistant", "int16"),
        ((1 << 15) + 1, "completion", "int32"),
        (1 << 16, "all", "uint16"),
        ((1 << 16) + 1, "all", "uint32"),
    ],
)
def test_the_vocabularys_size_decides_on_the_bytes(size: int, on: str, dtype: str) -> None:
    top = size - 1
    tokens = np.array([top, top if on == "all" else ~top, top])
    tokeniser = BatchTokeniser(lambda _: [tokens], size, 8, "split", on)  # type: ignore[arg-type]
    assert tokeniser.dtype == dtype
    assert tokeniser([Record("u", "x")]).ids.tolist() == tokens.tolist()


def test_a_store_of_conversations_says_by_which_template(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "chats.jsonl", [{"u": "a", "m": TALK}, {"u": "b", "m": TALK}])
    model = load_model(ModelConfig(pretraining_steps=0), sequence_length=16)
    for name in ("one", "other"):
        template = "{% for m in messages %}" + name + "{{ m.content }}{% endfor %}"
        (tmp_path / f"{name}.jinja").write_text(template)
    given = {"user_column": "u", "messages_column": "m", "loss_on": "all"}
    built = DataConfig.model_validate(
        {"source": str(source), **given, "chat_template": str(tmp_path / "one.jinja")}
    )
    folder = tmp_path / "store"
    build_from(built, model, encoder(built, model), folder)

    def opened(**changes: object) -> TokenStore:
        return open_or_build(
            DataConfig.model_validate({"source": str(folder), **given, **changes}), model
        )

    assert opened().num_users == opened(chat_template=built.chat_template).num_users == 2
    for changes, said in [
        ({"chat_template": str(tmp_path / "other.jinja")}, "was made with another; leave it out"),
        ({"chat_template": str(tmp_path / "none.jinja")}, r"none\.jinja': .*No such file"),
        ({"messages_column": "n"}, r"messages_column = 'n': .* made with 'm'; set the"),
    ]:
        with pytest.raises(ConfigError, match=said):
            opened(**changes)
    # A report would not say that others who speak in a conversation are promised nothing.
    with pytest.raises(ConfigError, match=r"messages_column = None: .* made with 'm'; set the key"):
        opened(messages_column=None)


ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
)
CALLING = (
    "{% for m in messages %}{{ m.role }}:{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}({{ call.function.arguments.city }}){% endfor %}"
    "{{ m.content or '' }};{% endfor %}"
)
CALL = {"name": "weather", "arguments": '{"city": "Rome"}'}
ASKED = [
    TALK[0],
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": CALL}]},
    {"role": "tool", "tool_call_id": "1", "content": "22 C"},
    {"role": "assistant", "content": "Warm."},
]


def store_of(
    folder: Path, rows: Sequence[object], template: str, **changes: object
) -> tuple[TokenStore, LanguageModel]:
    """A store of these conversations, a user each."""
    cells = [{"u": f"user-{number}", "m": row} for number, row in enumerate(rows)]
    source = write_rows(folder / "chats.jsonl", cells)
    (folder / "t.jinja").write_text(template)
    model = load_model(ModelConfig(pretraining_steps=0), sequence_length=64)
    config = DataConfig.model_validate(
        {
            "source": str(source),
            "user_column": "u",
            "messages_column": "m",
            "loss_on": "all",
            "chat_template": str(folder / "t.jinja"),
            **changes,
        }
    )
    return open_or_build(config, model), model


def test_a_row_that_the_template_refuses_is_named_or_dropped(tmp_path: Path) -> None:
    """By its place in the source, also from another process, whatever stands before it."""
    rows: list[object] = [TALK, None, *[TALK] * 21_000, TALK * 2, [*TALK, TALK[1]], TALK]
    named = r"^data.messages_column = 'm': row 21004: the .* refuses .*: Roles must alternate; fix"
    with pytest.raises(ConfigError, match=named):
        store_of(tmp_path, rows, ALTERNATE)
    store, _ = store_of(tmp_path, rows[-4:], ALTERNATE, drop_refused=True)
    assert store.num_users == 3
    assert store.manifest["dropped"] == {REFUSED: 1}
    steps = [{"step": "max-examples", "count": 1, "then": "keep-first"}]
    with pytest.raises(ConfigError, match="row 3: "):
        store_of(tmp_path, rows[-4:], ALTERNATE, preparation=steps)


def test_a_row_that_is_no_conversation_is_dropped_where_that_is_asked_for(tmp_path: Path) -> None:
    nothing = [TALK[0], {"role": "assistant", "content": None}]
    with pytest.raises(ConfigError, match="row 2: message 2 has no content that is a string"):
        store_of(tmp_path, [TALK, nothing], ALTERNATE)
    store, _ = store_of(tmp_path, [TALK, nothing], ALTERNATE, drop_refused=True)
    assert store.manifest["dropped"] == {NULL_TEXT: 1}


def test_tool_calls_go_through_a_template_that_knows_them(tmp_path: Path) -> None:
    """With their arguments as an object, as in the templates of Qwen and Llama."""
    store, model = store_of(tmp_path, [ASKED], CALLING)
    text = model.decode(store.example(0).tolist())
    assert text == "user:Who?;assistant:weather(Rome);tool:22 C;assistant:Warm.;"
    said = r"row 1: the chat template does not support tool calls; .*data\.drop_refused = true$"
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(ConfigError, match=said):
        store_of(tmp_path, [ASKED, TALK], plain)
    store, _ = store_of(tmp_path, [ASKED, TALK], plain, drop_refused=True)
    assert store.manifest["dropped"] == {REFUSED: 1}


def test_steps_read_what_is_said(tmp_path: Path) -> None:
    """Not how it is written down: keys, roles and spelt line ends are no words of anybody's."""
    forward = "---------------------- Forwarded by Ann Li on 01/02/2001 --\nread this"
    rows = [("long", "so many words of mine"), ("short", "few"), ("passed on", forward)]
    kinds: list[tuple[str, list[dict[str, object]]]] = [
        ("messages", [{"m": [{"role": "user", "content": text}]} for _, text in rows]),
        ("prompt", [{"m": text, "c": "."} for _, text in rows]),
    ]
    for kind, cells in kinds:
        source = write_rows(
            tmp_path / f"{kind}.jsonl",
            [{"u": user} | cell for (user, _), cell in zip(rows, cells, strict=True)],
        )
        given: dict[str, object] = {"source": str(source), "user_column": "u"}
        given[f"{kind}_column"] = "m"
        if kind == "prompt":
            given["completion_column"] = "c"
        steps = [{"step": "text-length", "unit": "words", "minimum": 3}, {"step": "drop-forwards"}]
        config = DataConfig.model_validate({**given, "preparation": steps})
        assert [record.user for record in records(config)] == ["long"], kind


def test_joined_conversations_lose_nothing(tmp_path: Path) -> None:
    """A word that begins a text and ends it is no begin and end token in one."""
    source = write_rows(
        tmp_path / "x.jsonl",
        [{"u": "a", "m": [{"role": "user", "content": text}]} for text in ("ok.", "!hello you!")],
    )
    model = load_model(ModelConfig(pretraining_steps=0), sequence_length=16)
    (tmp_path / "bare.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    config = DataConfig.model_validate(
        {
            "source": str(source),
            "user_column": "u",
            "messages_column": "m",
            "loss_on": "all",
            "cutting": "join",
            "chat_template": str(tmp_path / "bare.jinja"),
        }
    )
    store = open_or_build(config, model)
    assert model.decode(store.example(0).tolist()) == "ok.!hello you!"
