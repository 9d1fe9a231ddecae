"""Private scores: how far one user moves the sum, that nobody else moves, and the noise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.evaluation.metrics import evaluate
from fedsim.evaluation.private_scores import SENSITIVITY, private_scores
from fedsim.evaluation.scoring import owners
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.noise.gaussian import release_
from fedsim.report.schema import CoveredScores
from fedsim.seeding import noise_key
from fedsim.tensors import Tensors
from tests.helpers.light import light_config


@pytest.fixture(scope="module")
def materials(speeches: Path) -> Materials:
    config = light_config(speeches, data={"held_out_examples": 0.5})
    return load_materials(config.seed, config.data, config.model, "cpu")


def released(
    materials: Materials, examples: np.ndarray, parameters: Tensors | None = None
) -> np.ndarray:
    """The sum without noise, read off a release at a tiny deviation."""
    found: list[torch.Tensor] = []
    original = release_

    def watched(total: Tensors, *rest: object) -> object:
        found.append(total["scores"].clone())
        return original(total, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsim.evaluation.private_scores.release_", watched)
        score(materials, examples, parameters)
    return found[0].numpy()


def score(
    materials: Materials,
    examples: np.ndarray,
    parameters: Tensors | None = None,
    *,
    noise: float = 1e-6,
    number: int = 0,
    bound: float = 4.0,
    model: LanguageModel | None = None,
) -> CoveredScores:
    return private_scores(
        model or materials.model,
        materials.model.initial_parameters() if parameters is None else parameters,
        materials.store,
        examples,
        loss_bound=bound,
        noise_multiplier=noise,
        key=noise_key(number, "scores", 1),
    )


def test_without_noise_it_is_the_mean_over_users(materials: Materials) -> None:
    examples = materials.split.held_out_examples
    found = score(materials, examples, bound=50.0)
    exact = evaluate(
        materials.model, materials.model.initial_parameters(), materials.store, examples
    )
    assert found.loss == pytest.approx(exact.user_loss, abs=1e-3)
    assert found.accuracy_top1 == pytest.approx(exact.user_accuracy_top1, abs=1e-4)
    assert found.users == pytest.approx(exact.users, abs=1e-3)


def test_a_user_moves_the_sum_by_the_bound_at_most_and_nobody_else(materials: Materials) -> None:
    examples = materials.split.held_out_examples
    whose = owners(materials.store, examples)
    whole = released(materials, examples)
    parts = {user: released(materials, examples[whose == user]) for user in np.unique(whose)}
    for user, own in parts.items():
        without = released(materials, examples[whose != user])
        assert (whole - without == own).all()  # to the bit: sums of a grid, scored alone
        assert np.linalg.norm(own) <= SENSITIVITY
    assert len(parts) > 3


def test_a_loss_beyond_the_bound_or_that_is_no_number_counts_as_the_bound(
    materials: Materials,
) -> None:
    examples = materials.split.held_out_examples
    wild = {
        k: torch.full_like(v, math.nan) for k, v in materials.model.initial_parameters().items()
    }
    users = len(np.unique(owners(materials.store, examples)))
    for parameters, bound in ((wild, 4.0), (None, 1e-3)):
        found = score(materials, examples, parameters, bound=bound)
        assert found.loss == pytest.approx(bound, rel=1e-4)
        assert found.users == pytest.approx(users, abs=1e-3)


def test_the_noise_has_its_deviation(materials: Materials) -> None:
    examples = materials.split.held_out_examples
    whose = owners(materials.store, examples)
    users = len(np.unique(whose))
    counts = [score(materials, examples[:2], noise=0.05, number=n).users for n in range(300)]
    few = len(np.unique(whose[:2]))
    deviation = 0.05 * SENSITIVITY
    got = np.std(np.array(counts) - few)
    # `users` is at least 1, so that half of the noise is cut where there is one user
    expected = deviation if few > 1 else deviation * math.sqrt(0.5 - 0.5 / math.pi)
    assert got == pytest.approx(expected, rel=0.2)
    one = score(materials, examples, noise=0.5)
    again = score(materials, examples, noise=0.5)
    assert one == again
    assert one != score(materials, examples, noise=0.5, number=1)
    assert one.loss_stddev == pytest.approx(4.0 * 0.5 * SENSITIVITY / users, rel=0.5)


def test_of_no_text_there_is_noise_alone(materials: Materials) -> None:
    found = score(materials, np.empty(0, np.int64), noise=1.0)
    assert found.users >= 1.0
    assert found.loss <= 4.0
