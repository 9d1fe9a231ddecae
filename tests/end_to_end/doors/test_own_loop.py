"""The loop of docs/how-to/own-loop.md as it stands there, and another form of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsim
from fedsim.execution import Keys
from fedsim.tensors import Tensors

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "own-loop.md").read_text(encoding="utf-8")


def test_the_loop_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints what is shown, draws people at the charged rate, and learns under that noise."""
    (code,), (shown,) = (
        re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "text")
    )
    names: dict[str, Any] = {}
    exec(compile(code, "own-loop.md", "exec"), names)  # noqa: S102
    assert capsys.readouterr().out == shown
    state, plan, rounds = (names[name] for name in ("state", "plan", "rounds"))
    assert state.round == rounds == state.ledger.num_releases
    assert state.ledger.epsilon(names["delta"]) == fedsim.epsilon(plan.cost, rounds, names["delta"])
    with torch.no_grad():
        losses = [names["loss"](state.parameters, points) for points in names["people"]]
    assert float(torch.stack(losses).mean()) < 0.3  # from ln 2


def test_rounds_end_within_a_budget_and_local_steps_may_use_autograd() -> None:
    """Another form: users of several sizes, averaged differences, `train` in place of the loop."""
    weight = torch.nn.Parameter(torch.zeros(2))

    class Mine:
        def clipped_sum(
            self, parameters: Tensors, cohort: Keys, clip: fedsim.Clip, round: int
        ) -> fedsim.WeightedSum:
            total = fedsim.Accumulator(parameters, clip)
            for user in cohort:
                local = torch.nn.Parameter(parameters["w"].detach().clone())
                ((local - user) ** 2).sum().backward()
                moved = local - 0.1 * (local.grad if local.grad is not None else 0.0)
                update = fedsim.Update({"w": parameters["w"] - moved}, loss=0.0, num_gradients=1)
                total.add(update, weight=0.5)
                with pytest.raises(ValueError, match=r"^weight = 1.5: must be in \[0, 1\]$"):
                    total.add(update, weight=1.5)
            return total.total()

    sampling = fedsim.PoissonSampling(0.5)
    plan = fedsim.RoundPlan(
        strategy="mine",
        unit="user",
        pool=torch.arange(8).numpy(),
        sampling=sampling,
        clip=fedsim.FlatClip(l2_clip_norm=1.0),
        estimator=fedsim.FixedDenominator(0.5, total_weight=4.0),
        noise_multiplier=2.0,
        units_per_user=1,
        optimizer=fedsim.ServerOptimizer("sgd", 1.0),
    )
    budget = fedsim.Budget(epsilon=fedsim.epsilon(plan.cost, 3, 1e-3), delta=1e-3)
    states: list[fedsim.ServerState] = []
    with pytest.raises(fedsim.BudgetSpentError, match="round 3: 3 releases are charged"):
        fedsim.train(
            fedsim.ServerState(0, {"w": weight}),
            plan,
            Mine(),
            rounds=9,
            budget=budget,
            on_round=lambda state, _: states.append(state),
        )
    assert [state.round for state in states] == [1, 2, 3]
    assert not states[-1].parameters["w"].requires_grad
