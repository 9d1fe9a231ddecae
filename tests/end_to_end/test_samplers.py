"""Whole runs with every sampler and relation: what ran is what the report and ledger say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.report.schema import Privacy
from fedsim.sampling import FixedSizeSampling, PoissonSampling, Relation, TruncatedPoissonSampling
from tests.helpers.light import light_config

USERS = 24  # in the text


def run(speeches: Path, out: Path, **sections: dict[str, Any]) -> tuple[Privacy, list[int]]:
    """Return the promise and the cohorts' sizes of a short run."""
    strategy = {"rounds": 4, **sections.pop("strategy", {})}
    config = light_config(speeches, strategy=strategy, **sections)
    folder = fedsim.run(config, out).path
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return fedsim.load_report(folder).privacy, [line["units"] for line in lines[1:]]


def test_truncated(speeches: Path, tmp_path: Path) -> None:
    sampling = {"kind": "truncated-poisson", "max_cohort_size": 5}
    privacy, sizes = run(speeches, tmp_path / "run", strategy={"sampling": sampling})
    assert max(sizes) <= 5
    assert privacy.sampler == "Poisson sampling of users, truncated at 5 a round"
    law = TruncatedPoissonSampling(6 / USERS, 5, USERS)
    assert privacy.epsilon == epsilon(RoundCost(law, privacy.noise_multiplier or 0), 4, 1e-3)
    plain = epsilon(RoundCost(PoissonSampling(6 / USERS), privacy.noise_multiplier or 0), 4, 1e-3)
    assert (privacy.epsilon or 0) > 1.1 * plain
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger["releases"][0]["cost"]["sampling"]["max_units"] == 5


def test_fixed_size_is_replace_one(speeches: Path, tmp_path: Path) -> None:
    privacy, sizes = run(speeches, tmp_path / "run", strategy={"sampling": {"kind": "fixed-size"}})
    assert sizes == [6] * 4
    assert (privacy.relation, privacy.accountant) == ("replace-one user", "rdp")
    (public,) = [line for line in privacy.assumptions if "is public under the relation" in line]
    assert "by a user whose text is empty or dropped during preparation" in public
    assert "where users are held out, by a user with another name" in public
    cost = RoundCost(FixedSizeSampling(6, USERS), privacy.noise_multiplier or 0)
    assert privacy.epsilon == epsilon(cost, 4, 1e-3, "rdp", Relation.REPLACE)


@pytest.mark.parametrize("name", ["uls", "els"])
def test_shuffled_is_never_called_a_guarantee(name: str, speeches: Path, tmp_path: Path) -> None:
    size = {"cohort_size": 6} if name == "uls" else {"cohort_size": None, "batch_size": 6}
    privacy, sizes = run(
        speeches,
        tmp_path / "run",
        strategy={"name": name, "sampling": {"kind": "shuffled"}, **size},
    )
    assert sizes == [6] * 4
    assert privacy.hypothetical
    assert privacy.epsilon is not None
    assert privacy.statement.startswith("Hypothetical, not a guarantee for this run")
    assert any("hypothetical, not a guarantee" in line for line in privacy.assumptions)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "hypothetical, no guarantee: (ε = " in page


def test_zero_out_and_replace_one(speeches: Path, tmp_path: Path) -> None:
    plain, _ = run(speeches, tmp_path / "plain", privacy={"noise_multiplier": 1.0})
    zero, _ = run(
        speeches, tmp_path / "zero", privacy={"noise_multiplier": 1.0, "relation": "zero-out-one"}
    )
    assert zero.epsilon == plain.epsilon
    assert zero.relation == "zero-out-one user"
    replace, _ = run(
        speeches, tmp_path / "replace", privacy={"noise_multiplier": 1.0, "relation": "replace-one"}
    )
    assert (replace.epsilon or 0) > 1.2 * (plain.epsilon or 9)
