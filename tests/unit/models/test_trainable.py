"""Which parameters are selected, and what a pattern that selects none says."""

from __future__ import annotations

import pytest

from fedsim.clients.models.trainable import select_trainable
from fedsim.errors import ConfigError

NAMES = ["wte.weight", "h.0.attn.weight", "h.0.attn.lora_A.default.weight", "ln_f.bias"]


def test_all_is_everything_in_order() -> None:
    assert select_trainable(NAMES, "all") == NAMES


def test_all_with_adapters_is_the_adapters() -> None:
    assert select_trainable(NAMES, "all", lora=True) == ["h.0.attn.lora_A.default.weight"]


def test_a_pattern_is_searched_anywhere() -> None:
    assert select_trainable(NAMES, r"attn\.w|bias$") == ["h.0.attn.weight", "ln_f.bias"]


def test_a_pattern_reaches_beyond_the_adapters_when_asked() -> None:
    assert select_trainable(NAMES, "lora_|ln_f", lora=True) == NAMES[2:]


def test_a_pattern_without_a_match_names_the_parameters() -> None:
    with pytest.raises(ConfigError, match=r"model\.trainable = 'mlp'.*4 parameters.*wte\.weight"):
        select_trainable(NAMES, "mlp")


def test_a_long_list_of_names_is_thinned_out() -> None:
    with pytest.raises(ConfigError) as caught:
        select_trainable([f"layer.{index}" for index in range(100)], "absent")
    assert str(caught.value).count("layer.") == 8
    assert str(caught.value).endswith("...")


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.trainable = '\[': not a regular expression"):
        select_trainable(NAMES, "[")
