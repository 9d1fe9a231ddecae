"""What a round needs at least; what users see of it: tests/end_to_end/test_wrong_input.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from fedsim.grids.memory_needed import _sizes
from fedsim.language_model import LanguageModel
from fedsim.materials import load_materials
from fedsim.strategy import build_plan
from tests.conftest import small_config


def test_a_model_that_does_not_show_its_network_is_measured_by_what_is_trained(
    speeches: Path,
) -> None:
    config = small_config(speeches, model={"trainable": "all"})
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    plan, shown = build_plan(config, materials), materials.model
    plain = SimpleNamespace(
        vocabulary_size=shown.vocabulary_size,
        num_parameters=shown.num_parameters,
        initial_parameters=shown.initial_parameters,
    )
    sizes = [_sizes(config, cast(LanguageModel, one), plan, 1) for one in (plain, shown)]
    assert sizes[0].activations == sizes[1].activations > 0
