"""Arms in pairs: the arithmetic against scipy's, which pairs there are, and how they are said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_ind, ttest_rel

from fedsim.report.differences import differences, differences_table
from fedsim.report.grid_result import CellResult, GridResult
from fedsim.report.intervals import difference
from fedsim.report.labels import Arm, common_part, label_parts
from fedsim.report.tables import Table
from tests.unit.report.grid_samples import line

SEEDS = (0, 1, 2)


def of(*lines: CellResult) -> GridResult:
    return GridResult(lines=lines, seeds=SEEDS, differences=differences(lines))


def table(*lines: CellResult) -> Table:
    found = differences_table(of(*lines))
    assert found is not None
    return found


@given(pairs=st.lists(st.tuples(*2 * [st.integers(0, 10**6)]), min_size=2, max_size=6))
def test_the_intervals_are_those_of_the_paired_and_of_the_unpaired_t_test(
    pairs: list[tuple[int, int]],
) -> None:
    first, second = np.array(pairs).T / 1e5
    assume(min(first.std(), second.std(), (first - second).std()) > 1e-6)
    found = difference("a", "b", dict(enumerate(first.tolist())), dict(enumerate(second.tolist())))
    assert found is not None
    low, high = ttest_rel(first, second).confidence_interval(0.95)
    assert (found.loss.low, found.loss.high) == pytest.approx((low, high), rel=1e-6, abs=1e-9)
    assert found.clear == (not low <= 0.0 <= high)
    low, high = ttest_ind(first, second).confidence_interval(0.95)
    assert found.unpaired == pytest.approx((high - low) / 2, rel=1e-6)


def test_seeds_that_only_one_arm_has_are_left_out() -> None:
    """By hand: gaps 1 and 2, t at 97.5 % with one degree of freedom is 12.7062."""
    found = difference("a", "b", {0: 3.0, 1: 5.0, 2: 9.0}, {5: 0.0, 1: 3.0, 0: 2.0})
    assert found is not None
    assert (found.seeds, found.loss.mean, found.clear) == ((0, 1), 1.5, False)
    assert found.loss.high - 1.5 == pytest.approx(12.7062 * math.sqrt(0.5 / 2), rel=1e-5)
    assert difference("a", "b", {0: 1.0}, {1: 1.0}) is None
    one = difference("a", "b", {0: 1.0}, {0: 3.0})
    assert one is not None
    assert (one.loss.low, one.loss.high, one.unpaired, one.clear) == (-2.0, -2.0, 0.0, False)


@pytest.mark.parametrize(
    ("arms", "labels", "common"),
    [
        (
            [
                ("base", {"name": "uls", "epsilon": "2", "budget": "64"}),
                ("base", {"name": "uls", "epsilon": "8", "budget": "64"}),
                ("base", {"name": "non-private", "budget": "64"}),
            ],
            ["uls, ε = 2", "uls, ε = 8", "non-private"],
            "base, budget = 64",
        ),
        ([("uls", {}), ("els", {})], ["uls", "els"], ""),
        (
            [("a", {"group_size": k, "epsilon": "8"}) for k in ("4", "16")],
            ["group_size = 4", "group_size = 16"],
            "a, ε = 8",
        ),
        ([("a", {"privacy.epsilon": "8"})], ["a"], "a, ε = 8"),
        (
            [("a", {"strategy.name": "uls"}), ("b", {"strategy.name": "els"})],
            ["a, uls", "b, els"],
            "",
        ),
    ],
)
def test_a_label_is_what_differs(arms: list[Arm], labels: list[str], common: str) -> None:
    assert [", ".join(parts) for parts in label_parts(arms)] == labels
    assert common_part(arms) == common


settings_of = st.dictionaries(st.sampled_from(["name", "epsilon", "k"]), st.sampled_from("123"))


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), settings_of),
        min_size=1,
        unique_by=lambda arm: (arm[0], *sorted(arm[1].items())),
    )
)
def test_different_arms_have_different_labels(arms: list[Arm]) -> None:
    assert len(set(label_parts(arms))) == len(arms)


def test_pairs_have_one_setting_apart_and_non_private_is_beside_every_epsilon() -> None:
    lines = [
        line("base", name=name, epsilon=epsilon)
        for name in ("uls", "els")
        for epsilon in ("2", "8")
    ]
    plain = line("base", name="non-private", promised=False)
    rows = [row[0] for row in table(*lines, plain).rows]
    assert rows == [
        "uls vs els (ε = 2)",
        "uls, ε = 2 vs non-private",
        "uls vs els (ε = 8)",
        "uls, ε = 8 vs non-private",
        "els, ε = 2 vs non-private",
        "els, ε = 8 vs non-private",
        "ε = 2 vs ε = 8 (uls)",
        "ε = 2 vs ε = 8 (els)",
    ]
    assert differences_table(of(lines[0])) is None
    # A diverged seed is in no difference.
    lost = line("base", name="els", epsilon="2", losses=(2.0, math.nan, 2.5))
    (pair,) = of(lines[0], lost).differences
    assert pair.seeds == (0, 2)


def test_a_difference_that_leaves_zero_out_is_marked_and_pairing_is_seen_to_gain() -> None:
    arms = [
        line(n, losses=losses) for n, losses in zip("abc", _shifted(0.0, 0.01, 0.0), strict=True)
    ]
    rows = {row[0]: row[1:] for row in table(*arms).rows}
    assert rows["a vs b"] == ["* −0.0100 ± 0.0025", "± 0.2261", "3"]
    assert rows["a vs c"] == ["+0.0000 ± 0.0025", "± 0.2261", "3"]
    notes = " ".join(table(*arms).notes)
    assert "*: the paired interval excludes zero" in notes
    single = [line(name, losses=(loss,)) for name, loss in (("a", 3.0), ("b", 3.25))]
    shown = table(*single)
    assert shown.rows == [["a vs b", "−0.2500", "–", "1"]]
    assert "One seed gives no interval; --seeds 3 gives paired intervals." in shown.notes


def _shifted(*shifts: float) -> list[tuple[float, ...]]:
    """Return losses that share their spread over seeds, up to a little."""
    jitter = (0.0, 0.001, -0.001)
    return [
        tuple(
            base + shift + (number > 0) * jitter[(seed + number) % 3]
            for seed, base in enumerate((3.0, 3.1, 2.9))
        )
        for number, shift in enumerate(shifts)
    ]
