"""Hostile texts: JSONL, CSV, Parquet, Arrow and saved data sets, scripts and pickles as sources."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet

from fedsim.data.config import DataConfig
from fedsim.data.reading import records, source_fingerprint
from tests.conftest import WORDS
from tests.robustness.fuzzing.mutations import Dice, changed_bytes, changed_tree, odd_value, pick
from tests.robustness.fuzzing.samples import read_json, texts, write_json
from tests.robustness.fuzzing.store import Payload
from tests.robustness.fuzzing.target import Target, believe

_SAVED = "saved"
_SCRIPT = 'from pathlib import Path\nPath("executed").mkdir()\n'
_STEPS: tuple[dict[str, Any], ...] = (
    {"step": "exact-duplicates"},
    {"step": "min-examples", "count": 2},
    {"step": "merge-users", "file": "aliases.json"},
)


def _prepare(valid: Path) -> None:
    rows = [json.loads(line) for line in texts(valid).read_text("utf-8").splitlines()]
    if (valid / _SAVED).exists():
        return
    table = pyarrow.Table.from_pylist(rows)
    table.to_pandas().to_csv(valid / "texts.csv", index=False)
    pyarrow.parquet.write_table(table, valid / "texts.parquet")
    arrow = str(valid / "texts.arrow")
    with pyarrow.OSFile(arrow, "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(valid / _SAVED)


def _write(valid: Path, place: Path, dice: Dice) -> None:
    name = pick(dice, ["x.jsonl", "x.jsonl", "x.csv", "x.parquet", "x.arrow", _SAVED, "odd"])
    if name == _SAVED:
        shutil.copytree(valid / _SAVED, place / _SAVED)
        _damage_saved(place / _SAVED, dice)
    elif name == "odd":
        name = _odd_source(place, dice)
    elif name == "x.jsonl" and dice.random() < 0.6:
        rows = [json.loads(line) for line in texts(valid).read_text("utf-8").splitlines()]
        rows = changed_tree(dice, rows)
        lines = rows if isinstance(rows, list) else [rows]
        text = "\n".join(json.dumps(row) for row in lines)
        (place / name).write_bytes(text.encode("utf-8", errors="surrogatepass"))
    else:
        content = (valid / f"texts{Path(name).suffix}").read_bytes()
        (place / name).write_bytes(changed_bytes(dice, content))
    write_json(place / "how.json", {"source": name, "steps": []})


def _damage_saved(folder: Path, dice: Dice) -> None:
    path = pick(dice, sorted(path for path in folder.iterdir()))
    if dice.random() < 0.2:
        state = read_json(folder / "state.json")
        state["_data_files"] = [{"filename": "../../outside/secret.arrow"}]
        write_json(folder / "state.json", state)
    elif path.suffix == ".json" and dice.random() < 0.7:
        write_json(path, changed_tree(dice, read_json(path)))
    else:
        path.write_bytes(changed_bytes(dice, path.read_bytes()))


def _odd_source(place: Path, dice: Dice) -> str:
    """A script, a pickle, a data set that names files elsewhere, or a folder of none of these."""
    how = int(dice.integers(5))
    if how == 0:
        (place / "load.py").write_text(_SCRIPT, encoding="utf-8")
        return "load.py"
    if how == 1:
        (place / "data").mkdir()
        (place / "data" / "data.py").write_text(_SCRIPT, encoding="utf-8")
        return "data"
    if how == 2:
        (place / "rows.pkl").write_bytes(pickle.dumps(Payload()))
        return "rows.pkl"
    if how == 3:
        (place / "rows.jsonl").write_bytes(pickle.dumps(Payload()))
        return "rows.jsonl"
    kind = pick(dice, ["Image", "Audio", "Sequence", "Value", "Pdf", "Array2D"])
    table = pyarrow.table(
        {"author": ["a"], "body": [{"path": "../../outside/secret.json", "bytes": None}]}
    )
    features = {"author": {"dtype": "string", "_type": "Value"}, "body": {"_type": kind}}
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    pyarrow.parquet.write_table(table.replace_schema_metadata(told), place / "x.parquet")
    return "x.parquet"


def _read(place: Path) -> None:
    config = DataConfig.model_validate(
        {
            "source": str(place / read_json(place / "how.json")["source"]),
            "user_column": "author",
            "text_column": "body",
        }
    )
    source_fingerprint(config)
    for user, text in records(config):
        believe(user is None or (isinstance(user, str) and bool(user.strip())), f"user {user!r}")
        believe(text is None or isinstance(text, str), f"text {text!r}")
        for said in (user, text):
            if said is not None:
                said.encode()  # a store has to be able to keep it


def _write_aliases(valid: Path, place: Path, dice: Dice) -> None:
    aliases = {f"user-{i}": f"person-{i % 4}" for i in range(12)}
    how = dice.random()
    if how < 0.5:
        write_json(place / "aliases.json", changed_tree(dice, aliases))
        name = "aliases.json"
    else:
        rows = [f"{alias},{person}" for alias, person in aliases.items()]
        name = pick(dice, ["aliases.csv", "aliases.json"])
        (place / name).write_bytes(changed_bytes(dice, "\n".join(["alias,person", *rows]).encode()))
    if how > 0.95:
        (place / name).write_text("[" * 100_000, encoding="utf-8")
    rows = [json.dumps({"author": f"user-{i}", "body": pick(dice, WORDS)}) for i in range(12)]
    (place / "x.jsonl").write_text("\n".join(rows), encoding="utf-8")
    write_json(place / "how.json", {"aliases": name, "odd": str(odd_value(dice))[:50]})


def _read_aliases(place: Path) -> None:
    how = read_json(place / "how.json")
    step = {"step": "merge-users", "file": str(place / how["aliases"])}
    config = DataConfig.model_validate(
        {
            "source": str(place / "x.jsonl"),
            "user_column": "author",
            "text_column": "body",
            "preparation": [step],
        }
    )
    for user, _ in records(config):
        believe(isinstance(user, str) and bool(user.strip()), f"user {user!r}")


TARGETS = (
    Target("source", _write, _read, prepare=_prepare),
    Target("aliases", _write_aliases, _read_aliases),
)
