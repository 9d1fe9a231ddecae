"""The studies on text, on a small one, as a user types them."""

from __future__ import annotations

import csv
import gzip
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsim.experiments.studies.charles_2024 import gradient_diversity, tradeoffs
from fedsim.experiments.studies.charles_2024.tradeoffs import Recommendation
from fedsim.experiments.studies.common import trained
from fedsim.experiments.studies.de_2022 import server_step_runs
from fedsim.experiments.studies.ganesh_2025.co_owned_runs import QUICK
from fedsim.planner.variants import changed
from fedsim.report.grid_result import GridResult
from tests.conftest import small_config
from tests.end_to_end.studies.test_studies import TRAINED
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.light import write_config
from tests.helpers.tiny_world import LONGEST, write_model

ON_A_FILE = {  # study to options beside --data
    "estimate-and-double-text": ["--epsilon", "4"],
    "group-size": ["--epsilon", "2", "4", "--budget", "8"],
    "mechanisms": ["--rounds", "4"],
    "records-per-user": ["--epsilon", "4"],
    "tradeoffs": ["--epsilon", "2", "--budget", "8", "--seeds", "3"],
}
OTHERWISE = {*ON_A_FILE, "server-step"}  # both in tests of their own
MORE = {  # file to its least number of lines
    "estimate-and-double-text": {"suboptimality.csv": 6},
    "tradeoffs": {"comparison.md": 6, "recommendations.csv": 2},
}


@pytest.fixture(scope="module", autouse=True)
def _small_text(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The base config of all studies, on the small text and a network of one layer."""
    path = write_config(
        tmp_path_factory.mktemp("base") / "study.toml",
        speeches,
        data={"cutting": "join", "held_out_limit": 1},
        strategy={"cohort_size": None},
        model={"trainable": "wte"},
        privacy={"noise_multiplier": None, "epsilon": 8.0, "delta": 1e-3},
        server={"optimizer": "sgd", "learning_rate": 0.5},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "CONFIG", path)
        raw = small_config(speeches).model_dump(exclude_none=True)
        patch.setattr(gradient_diversity, "CONFIG", raw)
        patch.setattr(gradient_diversity, "COHORT", 6)
        light = tomllib.loads(path.read_text(encoding="utf-8"))
        patch.setattr(server_step_runs, "BASE", {name: light[name] for name in ("data", "model")})
        tradeoffs.planned.cache_clear()
        yield
    tradeoffs.planned.cache_clear()


def quick(name: str, out: Path, *options: str) -> tuple[list[dict[str, str]], str]:
    """Run a study; return the rows of its table and its page."""
    fedsim_ok("study", name, "--quick", "--out", out, *options)
    assert (out / "picture.png").stat().st_size > 10_000
    with (out / "table.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)), (out / "table.md").read_text(encoding="utf-8")


def assert_runs(name: str, out: Path, rows: list[dict[str, str]], page: str) -> None:
    """Every line of the grid has a row, a loss and the folder of its run."""
    text = (out / "measurement.json").read_text(encoding="utf-8")
    measurement = GridResult.model_validate_json(text)
    assert len(rows) == len(measurement.lines) > 0
    assert [line.failures for line in measurement.lines if line.failures] == []
    assert all(line.loss is not None for line in measurement.lines)
    for line in measurement.lines:
        run = out / "runs" / f"{line.name},seed={measurement.seeds[0]}"
        assert (run / "report.json").exists()
    for extra, least in MORE.get(name, {}).items():
        assert len((out / extra).read_text(encoding="utf-8").splitlines()) >= least
    assert "ε does not cover the choice" in page or measurement.tuning is None


@pytest.mark.parametrize("name", [name for name in TRAINED if name not in OTHERWISE])
def test_a_quick_run_leaves_table_picture_and_runs(name: str, tmp_path: Path) -> None:
    rows, page = quick(name, tmp_path)
    assert_runs(name, tmp_path, rows, page)
    assert "The paper" in page or "the large cohort" in page


@pytest.fixture(scope="module")
def chats(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small text as a compressed file with the columns that `--data` has by default."""
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl.gz"
    text = speeches.read_text(encoding="utf-8").replace('"author"', '"user"')
    path.write_bytes(gzip.compress(text.replace('"body"', '"text"').encode()))
    return path


@pytest.mark.parametrize("name", ON_A_FILE)
def test_a_study_on_a_file(name: str, chats: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "study", ON_A_FILE[name]
    rows, page = quick(name, out, "--data", str(chats), *options)
    assert_runs(name, out, rows, page)
    if "--epsilon" in options:
        assert {f"{float(row['set.epsilon']):g}" for row in rows} <= {*options}
    assert page.splitlines()[0].endswith(": chats.jsonl.gz")
    assert "- Texts: `chats.jsonl.gz`. 24 users have" in page
    assert "δ = 0.004;" in page
    assert f"`fedsim study {name} --data chats.jsonl.gz {' '.join(options)} --quick`" in page
    for path in out.glob("*.*"):
        assert str(chats.parent).encode() not in path.read_bytes()


def test_the_server_step_on_a_file_beside_the_built_in_text(chats: Path, tmp_path: Path) -> None:
    options = ("--data", str(chats), "--cohort", "4")
    rows, page = quick("server-step", tmp_path, *options)
    assert_runs("server-step", tmp_path, rows, page)
    assert {row["set.data"] for row in rows} == {"shakespeare", "chats"}
    assert {row["source"] for row in rows} == {
        "defaults",
        "plan",
        "auto",
        *server_step_runs.QUICK_STEPS,
    }
    assert "- 8 of 8 runs are done" in page
    assert "2 grids are complete" in page
    assert "`fedsim study server-step --data chats.jsonl.gz --cohort 4 --quick`" in page
    assert str(chats.parent) not in page
    begun = [(path / "report.json").stat().st_mtime_ns for path in (tmp_path / "runs").glob("*0")]
    _, again = quick("server-step", tmp_path, *options)
    assert again == page
    ended = [(path / "report.json").stat().st_mtime_ns for path in (tmp_path / "runs").glob("*0")]
    assert ended == begun


def test_files_of_one_name_or_too_many(chats: Path, tmp_path: Path) -> None:
    twice = ("--data", chats, "--data", chats)
    done = fedsim("study", "server-step", "--out", tmp_path / "one", *twice)
    assert "a second text named 'chats'; rename the file" in done.complaint
    done = fedsim("study", "group-size", "--out", tmp_path / "two", *twice)
    assert "a second file; this study accepts only one" in done.complaint


def test_a_file_without_the_column(chats: Path, tmp_path: Path) -> None:
    done = fedsim(
        "study", "group-size", "--out", tmp_path, "--data", chats, "--text-column", "body"
    )
    assert "data.text_column = 'body'" in done.complaint
    assert len(done.complaint.splitlines()) == 1


def test_a_study_of_the_built_in_text_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    options = ("--seeds", "2", "--budget", "8")
    quick("group-size", tmp_path, *options)
    page = (tmp_path / "table.md").read_text(encoding="utf-8")
    runs = sorted((tmp_path / "runs").glob("*,seed=*"))
    (runs[0] / "report.json").unlink()
    kept = (runs[1] / "report.json").stat().st_mtime_ns
    _, again = quick("group-size", tmp_path, *options)
    assert (runs[0] / "report.json").exists()
    assert (runs[1] / "report.json").stat().st_mtime_ns == kept
    tables = [re.sub(r"[\d.]+ s \|", "", text[text.index("## Table") :]) for text in (page, again)]
    assert tables[0] == tables[1]


def test_tradeoffs_of_a_pretrained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = write_model(tmp_path / "network", 0)
    adapters = {"pretraining_steps": None, "trainable": None, "lora_rank": 2}
    config = changed(trained.base(), data={"sequence_length": LONGEST}, model=adapters)
    path = tmp_path / "study-pretrained.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    monkeypatch.setattr(trained, "PRETRAINED", path)
    out = tmp_path / "study"
    rows, page = quick("tradeoffs", out, "--model", str(network))
    assert {row["source"] for row in rows} == {"uls", "els"}
    runs = [path for path in (out / "runs").iterdir() if (path / "adapter").is_dir()]
    assert len(runs) == 2
    assert "adapters of network" in page
    assert "`fedsim study tradeoffs --model network --quick`" in page
    for name in ("table.md", "comparison.html", "comparison.md"):  # for others to read
        assert str(tmp_path) not in (out / name).read_text(encoding="utf-8")


def test_gradient_diversity(tmp_path: Path) -> None:
    rows, page = quick("gradient-diversity", tmp_path)
    assert [int(row["group_size"]) for row in rows] == [1, 2, 4, 8] * 2
    for row in rows:
        if int(row["users"]):
            assert float(row["ratio_10"]) >= 1.0 - 1e-6  # by the triangle inequality
        assert float(row["needed"]) > 0.0
    for term in ("ε = 8, δ = 0.0001", "unit: user", "add-or-remove-one", "pld accountant"):
        assert term in page


def test_overhead(tmp_path: Path) -> None:
    rows, page = quick("overhead", tmp_path / "study")
    assert len(rows) == 2 * 7
    for strategy in ("uls", "els"):
        of = {row["part"]: float(row["seconds"]) for row in rows if row["strategy"] == strategy}
        total = of.pop("total")
        assert sum(of.values()) == pytest.approx(total)
        for part in ("forward_backward", "noise", "server_step", "accounting"):
            assert of[part] > 0.0
    for term in (
        "ε = 8, simulated: δ = 0.001",
        "one user",
        "Poisson sampling of users",
        "mixture accountant",
    ):
        assert term in page
    for setting in ("thread(s) of torch", "python 3", "Measured on"):
        assert setting in page


def test_co_owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = QUICK._replace(scenes=30, pretraining_steps=0)
    monkeypatch.setattr("fedsim.experiments.studies.ganesh_2025.co_owned.QUICK", small)
    rows, page = quick("co-owned", tmp_path)
    naive = "naïve: no ε covers listeners"
    assert [row["rule"] for row in rows if row["epsilon"]] == [
        "greedy, least demand",
        "random",
        naive,
    ]
    for row in rows:
        assert 0.0 <= float(row["auroc_low"]) <= float(row["auroc"]) <= float(row["auroc_high"])
        owned, size = int(row["listener_most"]), int(row["group_size"] or 0)
        assert owned > size if "naïve" in row["rule"] or not size else owned <= size
    for term in (
        "δ = 0.0001",
        "unit: owner",
        "fixed-graph",
        "unit: user",
        "add-or-remove-one user",
    ):
        assert term in page
    lines = [line for line in page.splitlines() if line.startswith("|") and "naïve" in line]
    assert len(lines) == 4  # with and without noise; K = 1 and 4 of what the rules keep
    assert all(naive in line for line in lines)
    with (tmp_path / "bounding.csv").open(encoding="utf-8", newline="") as file:
        counts = list(csv.DictReader(file))
    assert all(float(c["share_of_the_most"]) <= 1.0 for c in counts if c["rule"] != naive)
    assert len(counts) == 2 * 7
    planned = {(c["rule"], c["group_size"]): c["noise_on_the_mean_16"] for c in counts}
    for row in rows:
        if row["epsilon"]:  # the noise that is planned is the noise that ran
            noise = float(planned[row["rule"], row["group_size"]])
            assert float(row["noise_stddev"]) == pytest.approx(noise, rel=1e-3)


def row(gap: float, recommended: str, half: float = 0.15) -> Recommendation:
    better = "uls" if gap < 0.0 else "els"
    ends = (gap - half, gap + half, 0.3)
    return Recommendation("8", "64", recommended, better, gap, *ends, 4, 1.5, 1.2)


def test_right_recommendations_and_clear_cells_are_counted() -> None:
    rows = [row(-0.2, "uls"), row(0.1, "els"), row(0.2, "uls", 0.06), row(-0.1, "uls")]
    right, clear, widths = tradeoffs.counts(rows)
    assert "the smaller mean loss in 3 of 4 cells" in right
    assert right.endswith("ULS has the smaller mean loss in 2.")
    assert "in 2 cells. ULS has the smaller loss in 1 of them, ELS in 1." in clear
    assert "is 0.50 times as wide as the unpaired one (median of 4 cells; 0.20 to 0.50)" in widths
    first, _, third, _ = tradeoffs.gaps(rows).rows
    assert first[3:6] == ["* −0.2000 ± 0.1500", "± 0.3000", "0.50"]
    assert third[3:6] == ["* +0.2000 ± 0.0600", "± 0.3000", "0.20"]
    one_seed = row(-0.2, "uls", 0.0)._replace(unpaired=None)
    assert tradeoffs.gaps([one_seed]).rows[0][3:6] == ["−0.2000", "–", "–"]
    assert len(tradeoffs.counts([one_seed])) == 2
