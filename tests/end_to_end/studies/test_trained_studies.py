"""The studies that train, on a small text, as a user types them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.studies.charles_2024 import tradeoffs
from experiments.studies.common import trained
from experiments.studies.common.verdicts import Verdict, sentences
from fedsim.report.measured.lines import Interval, Measurement
from tests.conftest import small_config
from tests.end_to_end.studies.test_studies import TRAINED
from tests.helpers.commands import fedsim

MORE = {"estimate-and-double-text": "suboptimality.csv", "tradeoffs": "comparison.md"}


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
    if name in MORE:
        assert len((out / MORE[name]).read_text(encoding="utf-8").splitlines()) > 5
    page = (out / "table.md").read_text(encoding="utf-8")
    assert "The paper" in page or "the large cohort" in page
    assert "no ε here accounts for" in page or measurement.tuning is None


def verdict(gap: tuple[float, float, float], recommended: str) -> Verdict:
    mean, low, high = gap
    found = Interval(mean=mean, low=low, high=high)
    return Verdict("8", "64", found, recommended, group_size=4, diversity=1.5, needed=1.2)


def test_the_share_of_right_recommendations_is_counted() -> None:
    said = sentences(
        [
            verdict((-0.2, -0.3, -0.1), "uls"),
            verdict((0.1, -0.1, 0.3), "els"),
            verdict((0.2, 0.1, 0.3), "uls"),
            verdict((-0.1, -0.1, -0.1), "uls"),  # of one seed
        ]
    )
    assert "in 3 of 4 cells (75%); of the 2 cells whose 95 % interval leaves zero out, in 1" in (
        " ".join(said)
    )
    assert "It was wrong at ε = 8, B = 64." in said
