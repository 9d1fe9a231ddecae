"""The studies that train, on a small text, as a user types them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.studies.charles_2024 import tradeoffs
from experiments.studies.charles_2024.tradeoffs import Recommendation
from experiments.studies.common import trained
from fedsim.report.measured.lines import Measurement
from tests.conftest import small_config
from tests.end_to_end.commands import fedsim
from tests.end_to_end.studies.test_studies import TRAINED

MORE = {  # file to its least number of lines
    "estimate-and-double-text": {"suboptimality.csv": 6},
    "tradeoffs": {"comparison.md": 6, "recommendations.csv": 2},
}


@pytest.fixture(scope="module", autouse=True)
def _small_text(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The base config of all studies, on the small text."""
    config = small_config(
        speeches,
        data={"cutting": "join", "held_out_limit": 1},
        strategy={"cohort_size": None},
        model={"trainable": "wte"},
        privacy={"noise_multiplier": None, "epsilon": 8.0, "delta": 1e-3},
        server={"optimizer": "sgd", "learning_rate": 0.5},
    )
    path = tmp_path_factory.mktemp("base") / "study.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "CONFIG", path)
        tradeoffs.planned.cache_clear()
        yield
    tradeoffs.planned.cache_clear()


@pytest.mark.parametrize("name", TRAINED)
def test_a_quick_run_leaves_table_picture_and_runs(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    done = fedsim("study", name, "--quick", "--out", out)
    assert done.returncode == 0, done.stderr
    text = (out / "measurement.json").read_text(encoding="utf-8")
    measurement = Measurement.model_validate_json(text)
    assert measurement.lines
    assert [line.failures for line in measurement.lines if line.failures] == []
    assert all(line.loss is not None for line in measurement.lines)
    for line in measurement.lines:
        assert (out / "runs" / f"{line.name},seed={measurement.seeds[0]}" / "report.json").exists()
    with (out / "table.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(measurement.lines)
    assert (out / "picture.png").stat().st_size > 10_000
    for extra, least in MORE.get(name, {}).items():
        assert len((out / extra).read_text(encoding="utf-8").splitlines()) >= least
    page = (out / "table.md").read_text(encoding="utf-8")
    assert "The paper" in page or "the large cohort" in page
    assert "no ε here accounts for" in page or measurement.tuning is None


def row(gap: float, recommended: str) -> Recommendation:
    better = "uls" if gap < 0.0 else "els"
    return Recommendation("8", "64", recommended, better, gap, gap, gap, 4, 1.5, 1.2)


def test_right_recommendations_are_counted() -> None:
    rows = [row(-0.2, "uls"), row(0.1, "els"), row(0.2, "uls"), row(-0.1, "uls")]
    (line,) = tradeoffs.counts(rows)
    assert "the smaller mean loss in 3 of 4 cells" in line
    assert line.endswith("ULS has it in 2.")
