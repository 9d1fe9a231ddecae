"""Every study as a user types it, read back from what it leaves behind."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path

import dp_accounting
import pytest
from scipy import stats

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.experiments.studies.charles_2024.lemma_1 import renyi_divergences
from fedsim.sampling import PoissonSampling
from tests.helpers.commands import Done, fedsim

NAMES = [
    "accountant-gap",
    "asi-liu-noise",
    "conjecture-1",
    "estimate-and-double",
    "mean-estimation",
    "moments-tables",
    "noise-variance",
]
ON_TEXTS = ["co-owned", "gradient-diversity", "overhead"]  # see test_trained_studies.py
TRAINED = [  # see test_trained_studies.py
    "clip-noise",
    "estimate-and-double-text",
    "estimators",
    "group-size",
    "lora-rank",
    "mechanisms",
    "records-per-user",
    "selection",
    "server-step",
    "small-cohort-estimate",
    "tradeoffs",
    "users-in-accounting",
]


def study(*arguments: str | Path) -> Done:
    return fedsim("study", *arguments)


def read(path: Path) -> list[dict[str, str]]:
    """The rows, each of which says what its ε must be said with."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        terms = row.pop("terms")
        assert "unit: user" in terms
        assert "add-or-remove-one user" in terms
    return rows


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of every study."""
    folder = tmp_path_factory.mktemp("studies")
    for name in NAMES:
        done = study(name, "--quick", "--out", folder / name)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""  # no bar where there is no terminal
        assert f"Table: {folder / name / 'table.md'}" in done.stdout
    return {name: folder / name for name in NAMES}


def test_the_list_is_the_names_and_nothing_else() -> None:
    listed = study("--list")
    assert (listed.returncode, listed.stderr) == (0, "")
    others = ["black-box-audit", "private-tuning", "user-inference"]  # long: tested by their parts
    assert listed.stdout.splitlines() == sorted([*NAMES, *ON_TEXTS, *TRAINED, *others])


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_its_epsilon_is(finished: dict[str, Path], name: str) -> None:
    page = (finished[name] / "table.md").read_text(encoding="utf-8")
    for term in ("δ", "unit: user", "add-or-remove-one user", "Poisson sampling", "accountant"):
        assert term in page
    assert f"`fedsim study {name} --quick`" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 3
    assert len({line.count("|") for line in rows}) == 1


def test_the_accountant_gap(finished: dict[str, Path]) -> None:
    rows = [
        {key: float(value) for key, value in row.items()}
        for row in read(finished["accountant-gap"] / "table.csv")
    ]
    reference = dp_accounting.pld.PLDAccountant()
    reference.compose(
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(8.0)), 2_000
        )
    )
    alone = next(r for r in rows if (r["noise_multiplier"], r["group_size"]) == (8.0, 1.0))
    assert alone["epsilon_mixture"] == pytest.approx(reference.get_epsilon(1e-6), rel=0.01)
    assert alone["epsilon_group_privacy"] == pytest.approx(alone["epsilon_mixture"], rel=1e-3)
    for _, group in itertools.groupby(rows, key=lambda row: row["noise_multiplier"]):
        first, *larger = group
        assert all(r["epsilon_group_privacy"] > r["epsilon_mixture"] for r in larger)
        # more than linear, and never infinite
        assert all(
            first["epsilon_mixture"] * r["group_size"] < r["epsilon_mixture"] < 1e3 for r in larger
        )
    assert any(math.isinf(row["epsilon_group_privacy"]) for row in rows)
    assert "diverges |" in (finished["accountant-gap"] / "table.md").read_text(encoding="utf-8")


def test_the_asi_liu_noise(finished: dict[str, Path]) -> None:
    rows = read(finished["asi-liu-noise"] / "table.csv")
    for row in ({key: float(value) for key, value in row.items()} for row in rows):
        log = 3.0 + math.log(100 / 1e-5)
        printed = math.sqrt(8 * log) * row["printed_noise_multiplier"] / 18_195
        assert row["printed_stddev"] == pytest.approx(printed)
        assert row["printed_crossing"] * printed == pytest.approx(row["userwise_stddev"])
        # Chua et al.'s reading of Figure 3
        assert 0.01 < row["proved_crossing"] < row["printed_crossing"] < 0.1
        sigma = float(dp_accounting.get_sigma_gaussian(1.5, 0.5e-5)) * 10
        assert row["printed_noise_multiplier"] == pytest.approx(sigma, rel=2e-3)
    measured = read(finished["asi-liu-noise"] / "concentration.csv")
    assert [row["group_size"] for row in measured] == ["1", "2"]
    assert all(0.5 < float(row["needed_ratio"]) < 2 for row in measured)  # "around 1"
    page = (finished["asi-liu-noise"] / "table.md").read_text(encoding="utf-8")
    assert "below 0.1 in 2 of 2 settings" in page


def test_the_noise_variance(finished: dict[str, Path]) -> None:
    rows = read(finished["noise-variance"] / "table.csv")
    flags = {key: [row.pop(key) for row in rows] for key in [*rows[0]] if "no_more" in key}
    numbers = [{key: float(value) for key, value in row.items()} for row in rows]
    for i, row in enumerate(numbers):
        budget, size = row["gradients_per_round"], row["uls_group_size"]
        assert row["els_probability"] == budget / (32 * 1024)
        assert row["uls_probability"] == row["cohort_size"] / 1024
        assert row["els_variance"] == pytest.approx(
            (row["els_noise_multiplier"] * 10 / budget) ** 2
        )
        assert row["ratio_alike"] == pytest.approx(
            (row["els_noise_multiplier"] / (size * row["uls_noise_multiplier"])) ** 2
        )
        assert row["ratio_diverse"] == pytest.approx(size * row["ratio_alike"])
        assert flags["els_no_more_alike"][i] == str(row["ratio_alike"] <= 1)
        assert flags["els_no_more_diverse"][i] == str(row["ratio_diverse"] <= 1)
        els = PoissonSampling(row["els_probability"]), row["els_noise_multiplier"], 32
        uls = PoissonSampling(row["uls_probability"]), row["uls_noise_multiplier"], 1
        for cost in (RoundCost(*els), RoundCost(*uls)):
            assert row["epsilon"] * 0.998 <= epsilon(cost, 1_000, 1e-6) <= row["epsilon"]
    # what §3 sees: at G = K, ELS is ahead if gradients are alike and far behind if they differ
    last = max(numbers, key=lambda row: row["uls_group_size"])
    assert last["ratio_alike"] < 1 < last["ratio_diverse"]


def test_the_moments_tables(finished: dict[str, Path]) -> None:
    rows = read(finished["moments-tables"] / "table.csv")
    assert len(rows) == 6 * 3 + 6
    for row in rows:
        places = len(row["printed"].partition(".")[2])
        assert f"{float(row['moments']):.{places}f}" == row["printed"]
        assert 0 < float(row["pld"]) < float(row["rdp"]) < float(row["moments"])


def test_conjecture_1(finished: dict[str, Path]) -> None:
    rows = read(finished["conjecture-1"] / "table.csv")
    assert len(rows) == 4
    for row in rows:
        ratio, certain = float(row["ratio"]), float(row["probability"]) == 1.0
        assert row["violated"] == str(ratio > 1.0022) == "False"
        if certain:  # K clip norms for sure, at K times the noise
            assert ratio == pytest.approx(1.0, rel=2.2e-3)
        else:
            assert 0.3 < ratio < 0.97
    lemma = read(finished["conjecture-1"] / "lemma_1.csv")
    assert len(lemma) == 2 * 2 * 31
    assert {row["violated"] for row in lemma} == {"False"}
    assert any(float(row["renyi_els"]) < 0.5 * float(row["renyi_uls"]) for row in lemma)


def test_mean_estimation(finished: dict[str, Path]) -> None:
    rows = read(finished["mean-estimation"] / "table.csv")
    losses = {}
    for row in rows:
        budget, size, probability = (
            float(row[key]) for key in ("budget", "group_size", "sampling_probability")
        )
        assert probability == budget / (size * 256) <= 1.0
        cost = RoundCost(
            PoissonSampling(probability),
            float(row["noise_multiplier"]),
            int(size) if row["sampler"] == "example" else 1,
        )
        promised = float(row["epsilon"])
        assert promised * 0.998 <= epsilon(cost, 64, 1e-6) <= promised
        assert float(row["loss_low"]) < float(row["loss"]) < float(row["loss_high"])
        key = promised, int(budget), float(row["within_user_stddev"]), row["sampler"]
        losses[*key, int(size)] = float(row["loss"])
    # less than where it starts, |μ|² = 32 on average; and what privacy costs
    assert all(loss < 20 for loss in losses.values())
    assert losses[8.0, 64, 1.0, "user", 1] < 0.5 * losses[1.0, 64, 1.0, "user", 1]
    # what Appendix E sees: one example a user is on a par with ELS, and larger groups are ahead
    # where examples of a user differ much
    assert losses[1.0, 64, 8.0, "user", 1] < 1.1 * losses[1.0, 64, 8.0, "example", 16]
    assert losses[1.0, 64, 8.0, "user", 8] < 0.7 * losses[1.0, 64, 8.0, "user", 1]


def test_estimate_and_double(finished: dict[str, Path]) -> None:
    rows = read(finished["estimate-and-double"] / "table.csv")
    points = [row for row in rows if not row["strategy"]]
    least: dict[tuple[str, str], float] = {}
    for row in points:
        assert int(row["budget"]) == int(row["group_size"]) * int(row["cohort_size"])
        key = row["epsilon"], row["budget"]
        least[key] = min(least.get(key, math.inf), float(row["loss"]))
    assert len(points) == 2 * 4 * 3
    chosen = [row for row in rows if row["strategy"]]
    assert len(chosen) == 6 * len(least)
    means: dict[str, float] = {}
    for row in chosen:
        excess = float(row["suboptimality"])
        expected = float(row["loss"]) - least[row["epsilon"], row["budget"]]
        assert excess == pytest.approx(expected, abs=1e-12)
        assert excess >= -1e-12
        means[row["strategy"]] = means.get(row["strategy"], 0.0) + excess / len(least)
    assert means["Estimate-and-Double"] < 0.5 * means["random"]
    assert means["as printed"] == pytest.approx(means["max group size"])  # its cohort never grows


@pytest.mark.parametrize(("units", "noise", "probability"), [(3, 2.0, 0.2), (8, 5.0, 0.01)])
def test_the_divergences_of_lemma_1_are_the_proofs_sums(
    units: int, noise: float, probability: float
) -> None:
    """Appendix D: E (P/Q)^α is a sum over α independent Binomials of e^(Σ_{i<j} c_i c_j / σ²)."""
    counts = range(units + 1)
    weights = [float(stats.binom.pmf(count, units, probability)) for count in counts]
    for order, found in zip(
        (2, 3), renyi_divergences((2, 3), noise, units, probability), strict=True
    ):
        moment = sum(
            math.prod(weights[c] for c in drawn)
            * math.exp((sum(drawn) ** 2 - sum(c * c for c in drawn)) / (2 * noise**2))
            for drawn in itertools.product(counts, repeat=order)
        )
        assert found == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)


def test_the_divergences_of_one_unit_are_dp_accountings() -> None:
    reference = dp_accounting.rdp.RdpAccountant([2, 8, 32])
    reference.compose(dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.5)))
    assert renyi_divergences((2, 8, 32), 1.5, 1, 0.05) == pytest.approx(reference.rdp, rel=1e-9)


def test_a_study_replaces_its_own_files_only(finished: dict[str, Path], tmp_path: Path) -> None:
    out = finished["noise-variance"]
    before = (out / "table.csv").read_bytes()
    (out / "table.csv").write_bytes(b"cut off")
    assert study("noise-variance", "--quick", "--out", out).returncode == 0
    assert (out / "table.csv").read_bytes() == before
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    refused = study("noise-variance", "--quick", "--out", tmp_path)
    assert refused.returncode == 2
    assert "holds 'thesis.txt', which is not from a study" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["moment-tables"], "study = 'moment-tables': did you mean 'moments-tables'? known: acc"),
        (["demo"], "study = 'demo': known: accountant-gap"),
        ([], "study: no name; known: accountant-gap"),
        (["tradeoffs", "--data", "nowhere.jsonl"], "--data nowhere.jsonl: there is no such file"),
        (["tradeoffs", "--epsilon", "8", "many"], "unexpected extra argument (many)"),
        (["tradeoffs", "--epsilon", "many"], "--epsilon many: must be a number, such as 8"),
        (["group-size", "--epsilon", "1,-2"], "--epsilon -2: give a finite number above 0"),
        (["group-size", "--budget", "inf"], "--budget inf: give a finite number above 0"),
        (["mechanisms", "--user-column", "nick"], "--user-column nick: needs a file; give --data"),
        (["mechanisms", "--budget", "64"], "--budget: not an option of mechanisms, which takes"),
        (["lora-rank", "--rounds", "2"], "lora-rank, which takes only --quick and --out"),
        (["group-size", "--model", "x"], "--model: not an option of group-size, which takes"),
    ],
)
def test_wrong_names_and_options(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    done = study(*arguments, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()
