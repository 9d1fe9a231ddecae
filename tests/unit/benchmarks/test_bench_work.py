"""`fedsim bench work`: what counts as a pass over the parameters, and the goals of the engines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig

from fedsim.experiments.benchmarks.engines.work import Bytes, counted, run

WIDE = LlamaConfig(
    vocab_size=65_536,
    hidden_size=2_048,
    intermediate_size=8_192,
    num_hidden_layers=1,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=True,
)


def test_gradients_and_sums_count_and_weights_in_products_do_not() -> None:
    weight = torch.zeros(64, 32, device="meta")
    inputs, gradient = torch.zeros(40, 32, device="meta"), torch.zeros(40, 64, device="meta")
    seen, made = Bytes({"weight": weight}), list[torch.Tensor]()

    def passes(compute: Callable[[], object]) -> float:
        return counted(compute, seen)[1] / weight.nbytes

    assert passes(lambda: (inputs @ weight.T, gradient @ weight)) == 0
    assert (
        passes(lambda: F.embedding(torch.zeros(9, dtype=torch.int64, device="meta"), weight)) == 0
    )
    assert passes(lambda: made.append(gradient.T @ inputs)) == 1
    assert passes(lambda: made.append(torch.zeros_like(weight))) == 1
    assert passes(lambda: torch.linalg.vector_norm(made[0])) == 1
    assert passes(lambda: torch.mm(gradient.T, inputs, out=made[0])) == 1
    assert passes(lambda: made[1].add_(made[0], alpha=2.0)) == 3
    assert passes(lambda: made[1].addmm_(gradient.T, inputs)) == 2
    assert passes(weight.bfloat16) == 1.5


@pytest.mark.parametrize(
    ("tokens", "engine", "most_arithmetic", "most_passes"),
    [(128, "ghost", 1.1, 0.5), (2048, "materialised", 1.02, 5.05)],
)
def test_private_gradients_of_large_models_cost_little_more(
    tokens: int, engine: str, most_arithmetic: float, most_passes: float
) -> None:
    (row,) = run({"wide": WIDE}, (tokens,))
    assert row["engine"] == engine
    assert row["ratio"] is not None
    assert 1.0 <= row["ratio"] <= most_arithmetic
    assert 0.0 < row["details"]["passes"] <= most_passes
