"""What the demo compares, and what it says of the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsim.config import load_config
from fedsim.experiments.demo import CONFIGS, findings
from fedsim.report.attack_report import AttackReport
from tests.helpers.commands import fedsim_json
from tests.unit.report.grid_samples import compared
from tests.unit.report.report_samples import non_private, report, scores

CONFIG_FOLDER = Path(__file__).parents[2] / "experiments" / "configs"


def test_the_runs_share_users_start_seed_and_rounds() -> None:
    """So planted users, held-out text and passes are the same with privacy and without."""
    private, plain = (load_config(CONFIG_FOLDER / name) for name in CONFIGS)
    assert (private.seed, private.data, private.model) == (plain.seed, plain.data, plain.model)
    assert private.strategy.rounds == plain.strategy.rounds
    assert private.data.canaries is not None


def test_what_it_says_is_computed_from_both_runs(attacked: Path, tmp_path: Path) -> None:
    found = fedsim_json("attack", attacked, "--out", tmp_path)
    plain = AttackReport.model_validate(found)

    def at_chance(group: dict[str, Any]) -> dict[str, Any]:
        first, *others = group["measured"]
        return group | {"measured": [first | {"auroc": 0.5}, *others]}

    private = AttackReport.model_validate(found | {"groups": [*map(at_chance, found["groups"])]})
    start = scores(5.0)
    runs = [
        ("private", report(initial=start, final=scores(4.4)), ()),
        ("plain", report(initial=start, final=scores(4.0), promise=non_private()), ()),
    ]
    gain, *attacks = findings(compared(*runs, attacks={"private": private, "plain": plain}))
    assert "by 1.000 nats without privacy, and by 0.600 with" in gain
    assert "ε = 8.00 keeps 60.0 % of the gain" in gain
    for name, group, line in zip(("users", "planted users"), found["groups"], attacks, strict=True):
        auroc = group["measured"][0]["auroc"]
        assert f"Attack on {name}: AUROC {auroc:.3f} without privacy, 0.500 with" in line
