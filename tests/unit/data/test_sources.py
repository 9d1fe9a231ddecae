"""Reading sources: the same records from every kind of file, and errors that name the field."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim.data.config import DataConfig
from fedsim.data.reading import source_fingerprint, unread_files
from fedsim.errors import ConfigError
from tests.conftest import Patch, write_rows
from tests.unit.data.data_samples import build, pairs

ROWS: list[dict[str, str | None]] = [
    {"speaker": "ann", "text": "one", "other": "x"},
    {"speaker": "NA", "text": 'None, "quoted"\nsecond line ☂', "other": "y"},
    {"speaker": None, "text": "nobody's", "other": None},
    {"speaker": "ann", "text": None, "other": "z"},
    {"speaker": "bob", "text": "two", "other": "x"},
]
EXPECTED = [(row["speaker"], row["text"]) for row in ROWS]


def _csv(path: Path) -> None:
    quoted = [
        ",".join(
            "" if cell is None else '"' + cell.replace('"', '""') + '"' for cell in row.values()
        )
        for row in ROWS
    ]
    path.write_text("speaker,text,other\n" + "\n".join(quoted) + "\n")


def _arrow(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Path], object]] = {
    "rows.jsonl": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in ROWS)),
    "rows.json": lambda path: path.write_text(json.dumps(ROWS)),
    "rows.csv": _csv,
    "rows.parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path),
    "rows.arrow": _arrow,
}


def _config(path: Path, **changes: str) -> DataConfig:
    return DataConfig(source=str(path)).model_copy(update=changes)


def _read(folder: Path, users: Sequence[object] | pa.Array) -> list[tuple[str | None, str | None]]:
    """Read users of one text each from a Parquet file."""
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"speaker": users, "text": ["x"] * len(users)}), path)
    return pairs(_config(path))


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_the_same_records_and_store(tmp_path: Path, name: str) -> None:
    path = tmp_path / "odd [name]*" / name
    path.parent.mkdir()
    WRITERS[name](path)
    assert pairs(_config(path)) == EXPECTED
    store = build(pairs(_config(path)), tmp_path / "store")
    reference = build(EXPECTED, tmp_path / "reference")
    for file in reference.path.iterdir():
        assert (store.path / file.name).read_bytes() == file.read_bytes()


def test_a_folder_of_files_is_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, user in (("b.jsonl", "bob"), ("a.jsonl", "ann")):
        (tmp_path / name).write_text(json.dumps({"speaker": user, "text": "x"}) + "\n")
    (tmp_path / "README.md").write_text("not data")
    assert pairs(_config(tmp_path)) == [("ann", "x"), ("bob", "x")]


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".XZ": lzma.compress,
    ".zst": lambda content: pa.Codec("zstd").compress(content, asbytes=True),
}


@pytest.mark.parametrize("kind", ["rows.jsonl", "rows.csv"])
@pytest.mark.parametrize("ending", PACKED)
def test_a_folder_is_read_whole(tmp_path: Path, kind: str, ending: str) -> None:
    """Compressed, in upper case, in a folder of it; in two parts, as they are put together."""
    folder = tmp_path / "data"
    WRITERS[kind](tmp_path / kind)
    content, pack = (tmp_path / kind).read_bytes(), PACKED[ending]
    half = content.index(b"\n") + 1
    later = folder / "2024" / f"{kind.upper()}{ending}"
    later.parent.mkdir(parents=True)
    (folder / f"{kind}{ending}").write_bytes(pack(content[:half]) + pack(content[half:]))
    later.write_bytes(pack(content))
    assert pairs(_config(folder)) == EXPECTED * 2
    assert unread_files(_config(folder)) == []
    for name in (f"._{kind}", "README.md", ".cache/rows.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"\x00\x05")
    assert pairs(_config(folder)) == EXPECTED * 2
    words = f"files that are not read (3): ._{kind}, .cache/rows.jsonl, README.md"
    assert words in " ".join(unread_files(_config(folder)))


def test_a_folder_is_read_once(tmp_path: Path) -> None:
    """Without the files of runs whose --out is in it; a copy that is compressed is refused."""
    rows = b'{"speaker": "ann", "text": "x"}\n'
    for name in ("rows.jsonl", "runs/a/run.json", "runs/a/metrics.jsonl", "runs/b/rows.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(rows)
    assert pairs(_config(tmp_path)) == [("ann", "x")] * 2
    (tmp_path / "runs/b/rows.jsonl.gz").write_bytes(gzip.compress(rows))
    with pytest.raises(ConfigError, match=r"rows.jsonl.gz seems to be rows.jsonl, compressed"):
        pairs(_config(tmp_path))


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_a_compressed_file_that_was_cut_short(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.jsonl{ending}"
    pack = PACKED.get(ending) or lzma.compress
    path.write_bytes(pack(b'{"speaker": "ann", "text": "x"}\n' * 999)[:-9])
    with pytest.raises(ConfigError, match=rf"^data\.source = '.*{ending}': "):
        pairs(_config(path))


_COLUMNS = {key: {str(n): row[key] for n, row in enumerate(ROWS)} for key in ROWS[0]}
_EXPORT = {"name": "a group", "ids": [1, 2], "messages": ROWS}
_PARTS = [{"speaker": "ann", "text": ["see ", {"type": "link", "text": "x.org"}, "!"]}]
SHAPES: dict[str, tuple[str, list[tuple[str | None, str | None]]]] = {
    "a list over lines": (json.dumps(ROWS, indent=1), EXPECTED),
    "lists one after the other": (json.dumps(ROWS) + "\n" + json.dumps(ROWS), EXPECTED * 2),
    "a list in an object": (json.dumps(_EXPORT), EXPECTED),
    "a list in an object over lines": (json.dumps(_EXPORT, indent=1), EXPECTED),
    "objects over lines": ("\n".join(json.dumps(row, indent=1) for row in ROWS), EXPECTED),
    "commas between lines": (",\n".join(map(json.dumps, ROWS)), EXPECTED),
    "columns of pandas": (json.dumps(_COLUMNS), EXPECTED),
    "one row": (json.dumps(ROWS[0]), EXPECTED[:1]),
    "one row over lines": (json.dumps(ROWS[0], indent=1), EXPECTED[:1]),
    "parts of a text": (json.dumps(_PARTS), [("ann", "see x.org!")]),
    "NaN": (
        '{"speaker": NaN, "text": "x"}\n{"speaker": "a", "text": NaN}',
        [(None, "x"), ("a", None)],
    ),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_json_of_every_shape(tmp_path: Path, shape: str, encoding: str) -> None:
    content, expected = SHAPES[shape]
    (tmp_path / "rows.json").write_text(content, encoding=encoding)
    assert pairs(_config(tmp_path / "rows.json")) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            '{"users": ["ann"], "user_data": {"ann": {"x": ["a"]}}}',
            ".value.x[]}' {} > rows-rows.jsonl",
        ),
        ('{"ann": ["a", "b"], "bob": ["c"]}', "text: .value[]}' {} > rows-rows.jsonl for users"),
        ('{"chats": {"list": [{"messages": []}]}}', "'.KEY[]' for a list at KEY"),
        (
            '{"speaker": "a", "text": "x"}\n\0\0\0\n{"speaker": "b", "te',
            "NUL: jq -cR 'fromjson?' {} > rows-rows.jsonl",
        ),
        ('[{"speaker": "a"},\n{"speaker": b}]', "line 2 is not JSON"),
        ('{"speaker": "a", "text": "x"}\n["b", "y"]', "line 2 is not a JSON object"),
        ('["a", "b"]', "is not a JSON object"),
    ],
)
def test_json_of_another_shape_and_what_makes_lines_of_it(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"^data\.source") as caught:
        pairs(_config(path))
    assert words.replace("{}", str(path)) in str(caught.value)
    assert "bob" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_cells_of_a_csv_between_other_marks(tmp_path: Path, mark: str, encoding: str) -> None:
    lines = [["speaker", "text"], ["ann", '"one; two, three"'], ["bob", "four"]]
    content = "\n".join(mark.join(cells) for cells in lines)
    (tmp_path / "rows.csv").write_text(content, encoding=encoding)
    assert pairs(_config(tmp_path / "rows.csv")) == [
        ("ann", "one; two, three"),
        ("bob", "four"),
    ]


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_folder_of_save_to_disk(tmp_path: Path, as_dict: bool) -> None:
    table = datasets.Dataset.from_list(ROWS)
    (datasets.DatasetDict(train=table) if as_dict else table).save_to_disk(tmp_path / "saved")
    assert pairs(_config(tmp_path / "saved")) == EXPECTED


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([7, 8], ["7", "8"]),
        ([7.0, None], ["7", None]),
        ([7.5, float("nan")], ["7.5", None]),
        ([Decimal("7.00"), Decimal("7.50")], ["7", "7.5"]),
        (["007", "7"], ["007", "7"]),
        (["ann ", "ann"], ["ann", "ann"]),
        (["\u202aann\u202c", "\u200eann", "a\u200bnn", "\ufeff ann"], ["ann"] * 4),
        (["a\u00adnn", "ann\ufe0f", "\u2066\u2069"], ["ann", "ann", None]),
        (["", "  "], [None, None]),
    ],
)
def test_a_user_has_one_name(
    tmp_path: Path, cells: list[object], expected: list[str | None]
) -> None:
    if any(expected):
        assert [user for user, _ in _read(tmp_path, cells)] == expected
    else:
        with pytest.raises(ConfigError, match="all values are null"):
            _read(tmp_path, cells)


def test_integers_that_became_floats_are_refused_where_digits_may_be_lost(tmp_path: Path) -> None:
    """As pandas makes of them where one is missing; two users would be one."""
    with pytest.raises(ConfigError, match=r"'speaker': holds a float that may .* digits") as found:
        _read(tmp_path, [2.0**53, None])
    assert "9007199254740992" not in str(found.value)  # a message ends up in logs


def test_a_csv_is_read_as_it_is_written(tmp_path: Path) -> None:
    """A mark of the encoding, empty lines, empty cells, doubled quotes, a text like a book."""
    book = "word, " * 30_000
    lines = [
        "",
        "speaker,text,more",
        "",
        '007,"a ""b"", c\r\nd",',
        "7,,",
        f'cy,"{book}",x',
        'dan,"",y',
    ]
    (tmp_path / "rows.csv").write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    read = pairs(_config(tmp_path / "rows.csv"))
    assert read == [("007", 'a "b", c\r\nd'), ("7", None), ("cy", book), ("dan", None)]


@pytest.mark.parametrize(
    "line",
    [
        "thanks,bob,ann",  # a comma, and no quotes around the text
        '"she said \\"no\\",bob,and left",ann',  # quotes as Spark writes them
        '"ends with a quote \\""\ngood day,bob\n"hello",cat',  # one of which takes two rows in
        "a secret\nmy doctor is,ann",  # a line break, and no quotes around the text
    ],
)
def test_no_text_becomes_the_name_of_a_user(line: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"text,speaker\n{line}\ngood day,bob\n")
    with pytest.raises(ConfigError, match=r"rows\.csv: line \d.* twice") as caught:
        pairs(_config(path))
    assert "she" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "bob" not in str(caught.value)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Which of two is read would decide who is protected."""
    path = tmp_path / "rows.csv"
    path.write_text("text,speaker,speaker\nhello,ann,bob\n")
    with pytest.raises(ConfigError, match=r"data\.user_column = 'speaker': .* has 2 columns"):
        pairs(_config(path))


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, form: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(form.format('{"speaker": "ann", "text": "a", "speaker": "bob"}'))
    with pytest.raises(ConfigError, match="an object has a key twice"):
        pairs(DataConfig(source=str(path), user_column="speaker", text_column="text"))


def test_a_missing_column_is_named_beside_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    WRITERS["rows.jsonl"](path)
    for field in ("user_column", "text_column"):
        known = "columns: speaker, text, other; file: rows.jsonl"
        expected = f"data.{field} = 'author': no such column; {known}"
        with pytest.raises(ConfigError, match=f"^{expected}$"):
            pairs(_config(path, **{field: "author"}))
    (tmp_path / "rows.csv").write_text("ann;a\nbob;b\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="columns: ann;a; the first line must name them"):
        pairs(_config(tmp_path / "rows.csv"))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_a_later_file_without_a_column_is_refused(tmp_path: Path, kind: str) -> None:
    WRITERS[f"rows.{kind}"](tmp_path / f"a.{kind}")
    later = tmp_path / f"b.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([{"speaker": "eve", "Text": "a"}]), later)
    else:
        later.write_text(
            "speaker,Text\neve,a\n" if kind == "csv" else '{"speaker":"eve","Text":"a"}'
        )
    with pytest.raises(ConfigError, match="'text': no such column; columns: speaker, Text"):
        pairs(_config(tmp_path))


@pytest.mark.parametrize("place", [0, 999, 1000, 2500])
def test_where_in_the_file_texts_are_missing_changes_nothing(tmp_path: Path, place: int) -> None:
    without = [{"speaker": "ann"}] * 1500
    rows: list[dict[str, object]] = [{"speaker": "bob", "text": f"text {n}"} for n in range(5000)]
    path = write_rows(tmp_path / "rows.jsonl", [*rows[:place], *without, *rows[place:]])
    found = pairs(_config(path))
    assert found.count(("ann", None)) == 1500
    assert [text for user, text in found if user == "bob"] == [row["text"] for row in rows]


def test_a_shard_without_rows_is_passed_over(tmp_path: Path) -> None:
    table = pa.table({"speaker": ["ann"], "text": ["x"]})
    pq.write_table(table.slice(0, 0), tmp_path / "0.parquet")
    pq.write_table(table, tmp_path / "1.parquet")
    assert pairs(_config(tmp_path)) == [("ann", "x")]


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ("user_column", "holds list values; wanted: strings or numbers"),
        ("text_column", "row 1: holds a list; wanted: strings"),
    ],
)
def test_a_column_of_something_else(tmp_path: Path, field: str, complaint: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"speaker": "ann", "text": "a", "tags": ["b"]}\n')
    expected = rf"data\.{field} = 'tags': {complaint}$"
    with pytest.raises(ConfigError, match=expected):
        pairs(_config(tmp_path / "rows.jsonl", **{field: "tags"}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "rows.jsonl",
            b"{]\nnot json",
            "line 1 is not JSON: Expecting property name",
        ),
        ("rows.csv", b"speaker,text\n", "holds no rows"),
        ("rows.csv", b'speaker,text\nann,"open', "line 2: unexpected end of data; write a quote"),
        ("rows.parquet", b"not parquet", "Parquet"),
        ("rows.arrow", b"not arrow", "."),
        ("rows.xlsx", b"PK", "unknown kind of file; known: .jsonl, .ndjson, .json, .csv"),
    ],
)
def test_a_file_that_cannot_be_read(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^data\.source = '.*{name}': .*{message}"):
        pairs(_config(tmp_path / name))


def test_a_file_or_folder_that_is_not_there(tmp_path: Path) -> None:
    for source in ("missing.jsonl", str(tmp_path / "missing"), "../a/b"):
        for use in (pairs, source_fingerprint):
            with pytest.raises(ConfigError, match="no such file or folder"):
                use(DataConfig(source=source))


def test_a_folder_without_data_or_with_two_kinds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no data files; wanted: one kind of \.jsonl"):
        pairs(_config(tmp_path))
    (tmp_path / "a.csv").touch()
    (tmp_path / "a.parquet").touch()
    with pytest.raises(ConfigError, match="holds csv and parquet files"):
        pairs(_config(tmp_path))


def test_a_hub_id_goes_to_the_hub_and_its_failure_is_a_config_error(monkeypatch: Patch) -> None:
    asked: list[tuple[str, object]] = []

    def unreachable(name: str, **options: object) -> None:
        asked.append((name, options["streaming"]))
        raise ConnectionError("Couldn't reach 'owner/name' on the Hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    expected = (
        r"^data\.source = 'owner/name': Couldn't reach 'owner/name' on the Hub; "
        r"without the hub, give data\.source a folder of data files, or one of save_to_disk$"
    )
    with pytest.raises(ConfigError, match=expected):
        pairs(DataConfig(source="owner/name"))
    assert asked == [("owner/name", True)]


@pytest.mark.parametrize(
    ("names", "newcomer"),
    [
        ([9007199254740993, 9007199254740992], 1.5),
        (["2020-01-01", "2020-01-02"], "bob"),
        ([123, 4], "0123"),
        ([7, 8], None),
    ],
)
def test_nobody_renames_others_by_a_name_of_another_type(
    tmp_path: Path, names: list[object], newcomer: object
) -> None:
    """A column's type is no property of a user; it was one of everybody in a block of rows."""
    rows = [{"author": name, "body": "2020-01-01 10:00:00"} for name in names]
    new = {"author": newcomer, "body": "words"}
    read = []
    for given in (rows, [new, *rows], [*rows, new]):
        path = tmp_path / "messages.jsonl"
        write_rows(path, given)
        config = DataConfig(source=str(path), user_column="author", text_column="body")
        read.append([record for record in pairs(config) if record[1] != "words"])
    assert read[0] == read[1] == read[2] == [(str(name), "2020-01-01 10:00:00") for name in names]


def test_a_hub_id_without_types_is_refused_and_one_with_types_is_read(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """`datasets` guesses the types of CSV rows by rows: "007" is 7 where no name has a letter."""
    path = tmp_path / "rows.csv"
    path.write_text("author,body\n007,the king\n7,a queen\n")
    config = DataConfig(source="hub/id", user_column="author", text_column="body")
    csv = {"data_files": [str(path)], "split": "train", "streaming": True}
    assert datasets.load_dataset("csv", **csv).features is None
    rows = [{"author": "007", "body": "the king"}]
    # As that one, without a file that would stay open where it is read after all.
    untyped = datasets.IterableDataset.from_generator(lambda: iter(rows))
    typed = datasets.Dataset.from_list(rows)

    def found(loaded: object) -> list[tuple[str | None, str | None]]:
        monkeypatch.setattr("fedsim.data.rows._load", lambda *_: iter([loaded]))
        return pairs(config)

    assert found(typed.to_iterable_dataset()) == [("007", "the king")]
    with pytest.raises(ConfigError, match="'hub/id': has no column types"):
        found(untyped)
