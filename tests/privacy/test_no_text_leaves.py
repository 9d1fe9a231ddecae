"""No log, message or report has a word of a user's text, or a user's name, in it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.helpers.commands import Done, fedsim
from tests.helpers.light import light_config

WORD, NAME = "qvoxmarker", "zyxperson"
NUM_USERS = 16


def rows() -> list[dict[str, object]]:
    return [
        {"author": f"{NAME}{user}", "body": f"the king {WORD}{user}x{text} {'to ' * text}{WORD}"}
        for user in range(NUM_USERS)
        for text in range(6)
    ]


def as_lines(content: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in content)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the texts and the configs of two strategies on them."""
    folder = tmp_path_factory.mktemp("marked")
    (folder / "rows.jsonl").write_text(as_lines(rows()), encoding="utf-8")
    for name in ("uls", "els"):
        config = light_config(
            folder / "rows.jsonl",
            data={"held_out_users": 0.4},
            strategy={"name": name, "rounds": 2, "batch_size": 6 if name == "els" else None}
            | ({"cohort_size": None} if name == "els" else {}),
            privacy={"epsilon": 8.0, "noise_multiplier": None, "declared_num_users": NUM_USERS},
            training={"trackers": ["tensorboard", "wandb", "mlflow"] if name == "uls" else []},
        )
        (folder / f"{name}.toml").write_text(config.to_toml(), encoding="utf-8")
    return folder


def leaks(text: str) -> list[str]:
    """Return the places where a text or a name stands, with what is around it."""
    low = text.lower()
    found = [low.find(mark) for mark in (WORD, NAME)]
    return [text[max(0, at - 60) : at + 40] for at in found if at >= 0]


def check_said(done: Done, status: int = 0) -> None:
    assert done.returncode == status, done.stderr
    assert not leaks(done.stdout)
    assert not leaks(done.stderr)


def check_files(folder: Path) -> int:
    """Search every file of a folder but the sources and the tokenizer; return how many."""
    searched = 0
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in ("rows.jsonl", "tokenizer.json"):
            assert not leaks(path.read_bytes().decode("latin-1")), path
            assert not leaks(path.name)
            searched += 1
    return searched


def test_a_run_and_what_is_made_of_it(place: Path) -> None:
    out = place / "runs"
    check_said(fedsim("run", place / "uls.toml", "--out", out / "uls"))
    check_said(fedsim("evaluate", out / "uls", "--personalise", "1"))
    check_said(fedsim("attack", out / "uls", "--samples", "1", "--checkpoints"))
    check_said(fedsim("compare", place / "els.toml", out / "uls", "--out", out / "both"))
    check_said(fedsim("plan", place / "uls.toml", folder=place))
    assert check_files(out) > 20
    assert not leaks((out / "uls" / "model" / "tokenizer.json").read_text(encoding="utf-8"))
    # What may hold text does: the search would have seen it.
    stores = Path(os.environ["FEDSIM_CACHE"]) / "stores"
    assert any(leaks(path.read_text(encoding="utf-8")) for path in stores.glob("*/users.jsonl"))


def test_a_store_and_what_is_said_of_it(place: Path) -> None:
    columns = ["--user-column", "author", "--text-column", "body", "--tokenizer", "tiny-gpt"]
    store = place / "store"
    check_said(fedsim("data", "build", place / "rows.jsonl", *columns, "--out", store))
    check_said(fedsim("data", "inspect", store, "--verify"))
    check_said(fedsim("data", "inspect", store, "--json"))
    assert [path.name for path in store.iterdir() if leaks(path.read_text("latin-1"))] == [
        "users.jsonl"
    ]


BROKEN = {
    "cut.jsonl": as_lines(rows())[:-20],
    "bare.jsonl": f"{WORD} {NAME}\n" + as_lines(rows()),
    "types.jsonl": as_lines([*rows(), {"author": [f"{NAME}1"], "body": {WORD: WORD}}]),
    "list.jsonl": as_lines([{"author": f"{NAME}1", "body": [WORD, WORD]}]),
    "names.jsonl": as_lines([{"author": [NAME], "body": WORD}]),
    "quote.csv": f'author,body\n{NAME},"{WORD}\n{NAME},{WORD}\n',
    "wide.csv": f"author,body\n{NAME},{WORD}\n{NAME},{WORD},{WORD},{WORD}\n",
    "binary.jsonl": f'{{"author": "{NAME}", "body": "{WORD}\udcff"}}\n',
    "rows.parquet": f"{NAME} {WORD}",
    "rows.txt": f"{NAME} {WORD}",
    "rows.pkl": f"{NAME} {WORD}",
}


@pytest.mark.parametrize("name", BROKEN)
def test_texts_that_cannot_be_read(place: Path, tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    source.write_bytes(BROKEN[name].encode("utf-8", errors="surrogateescape"))
    override = f"data.source='{source}'"
    check_said(fedsim("run", place / "uls.toml", "--set", override, "--out", tmp_path / "run"), 2)
    compared = fedsim("compare", place / "uls.toml", "--set", override, "--out", tmp_path / "both")
    check_said(compared, 2)
    source.unlink()
    assert check_files(tmp_path) >= 1  # the traceback that is kept


@pytest.mark.parametrize("column", ["user", "text"])
def test_a_column_that_is_not_there(place: Path, tmp_path: Path, column: str) -> None:
    override = f"data.{column}_column=nobody"
    check_said(fedsim("run", place / "uls.toml", "--set", override, "--out", tmp_path / "run"), 2)


def test_aliases_that_contradict_each_other(place: Path, tmp_path: Path) -> None:
    chain = {f"{NAME}1": f"{NAME}2", f"{NAME}2": f"{NAME}3"}
    for content in (chain, {f"{NAME}1": " "}):
        (tmp_path / "aliases.json").write_text(json.dumps(content), encoding="utf-8")
        check_said(with_aliases(place, tmp_path, "aliases.json"), 2)
    rows = f"alias,person\n{NAME}1,{NAME}2\n{NAME}1,{NAME}3\n"
    (tmp_path / "aliases.csv").write_text(rows, encoding="utf-8")
    check_said(with_aliases(place, tmp_path, "aliases.csv"), 2)


def with_aliases(place: Path, folder: Path, name: str) -> Done:
    step = f'data.preparation=[{{step="merge-users", file="{folder / name}"}}]'
    return fedsim("run", place / "uls.toml", "--set", step, "--out", folder / "run")
