"""Whatever tensors a unit brings, what it adds to a sum is no longer than the clip's bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedsim.clients import app
from fedsim.clients.engines.clipped_sums import clip_factors
from fedsim.clients.engines.per_example.batched import Buffers
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import Ghost, ghost
from fedsim.clients.engines.per_example.gradient_terms import (
    Gradients,
    Masses,
    Product,
    Rows,
    Segments,
    StackedProduct,
    Term,
    Total,
)
from fedsim.clients.engines.per_example.materialised import Materialised, materialised
from fedsim.clients.models.mcmahan_lstm import NormalisedRows, unit_rows
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import Clip, FlatClip
from fedsim.estimators import WeightedSum
from fedsim.execution import Engine, Keys, Task
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.materials import Materials
from fedsim.noise.tolerance import ROUNDING_TOLERANCE
from fedsim.tensors import Tensors, add, l2_norm
from tests.conftest import small_config
from tests.contracts.test_executors import TASKS, client_spec

MKLDNN: Any = torch.backends.mkldnn
TORCH: Any = torch.backends  # whose types do not say all that it has
BACKENDS = (TORCH.cuda.matmul, MKLDNN.matmul, MKLDNN.conv, TORCH.cudnn.conv)
Kind = type[Ghost | Materialised]
BOUND = 1.1  # inside a binade: sums near it are not rounded more finely
POSITIONS, WIDTH = 1000, 2048
SIGNS = torch.tensor([1.0, -1.0]).repeat(POSITIONS // 2)


def one_large_entry(size: int) -> torch.Tensor:
    """Return 4 beside entries whose squares are half a unit in the last place of 16."""
    row = torch.full((size,), 4.0 * 2.0**-12)
    row[0] = 4.0
    return row


def lost_beside_what_cancels() -> Product:
    """Small entries all alike, beside one that alternates: it cancels, but hides the others."""
    left = torch.full((POSITIONS, WIDTH), 2.0**-12)
    left[:, 0] = SIGNS
    left[:, 1] = 0.012
    right = torch.zeros(POSITIONS, WIDTH)
    right[:, 0] = 1.0
    return Product(left[None], right[None])


def random_directions() -> Product:
    """Half of every position goes the same way, the other half any."""
    torch.manual_seed(0)
    left, right = torch.randn(2, POSITIONS, WIDTH)
    return Product((left * SIGNS[:, None] + 0.02)[None], right.abs()[None])


def rounded_up() -> Product:
    """Terms of half the last place of the first one, and a bit: each is rounded up to a whole."""
    left, right = torch.zeros(2, POSITIONS, WIDTH)
    left[:, 0], right[:, 0] = 0.51 * 2.0**-23, 1.0
    left[0, 0] = BOUND
    return Product(left[None], right[None])


def rounded_up_row() -> Product:
    """Row by row, so that a gradient that is formed is rounded as the sum is."""
    left = torch.full((1, POSITIONS, 64), 0.51 * 2.0**-23)
    left[:, 0] = BOUND
    return Product(left, torch.ones(1, POSITIONS, 64))


def taken(
    make: Kind,
    layout: Tensors,
    uses: Mapping[str, Term],
    tokens: Sequence[int] | None = None,
    room: int = 0,
) -> Gradients:
    """Units of one example each, of `tokens`; or one unit."""
    num_units = 1 if tokens is None else len(tokens)
    gradients = make(Buffers(), layout, num_units, room)
    gradients.start_pass(Segments([1] * num_units, whole=True, tokens=tokens))
    for name, use in uses.items():
        gradients(name, use)
    return gradients


def clipped(gradients: Gradients, layout: Tensors, bound: float = BOUND) -> torch.Tensor:
    """Return the factors of units, of which none is left out."""
    factors, plain = clip_factors(FlatClip(l2_clip_norm=bound), layout, gradients.squares())
    assert plain.all()
    return factors


def alone(gradients: Gradients, layout: Tensors, bound: float) -> list[bool]:
    """Return whether each unit is added alone."""
    return gradients.coarse(clipped(gradients, layout, bound), bound).tolist()


def added(make: Kind, use: Term, layout: torch.Tensor) -> tuple[float, float]:
    """Return the norms of what one unit adds: in exact arithmetic and as it is added."""
    parameters = {"weight": layout}
    gradients = taken(make, parameters, {"weight": use}, room=2**40)
    factors, squares = clipped(gradients, parameters), gradients.squares()
    if make is Ghost and isinstance(use, Product) and use.left.shape[1] > 1:
        # Of what is not formed even the squares are bounds, before any margin for norms.
        unclipped = l2_norm(dict(gradients.weighted_sum(torch.ones_like(squares))))
        assert unclipped <= float(squares.sqrt())
    summed = l2_norm(dict(gradients.weighted_sum(factors)))
    exact = use.to(torch.float64).weighted_sum(factors[0].float().double())
    return l2_norm({"weight": exact}), summed


def lost_in_blocks() -> Product:
    """Two positions of which each block has one large entry and 63 that it is too large for."""
    block = torch.full((64,), 0.99 * 2.0**-10)
    block[0] = 4.0
    left = block.repeat(2, WIDTH // 64)
    right = left.clone()
    right[0, : WIDTH // 2], right[1, WIDTH // 2 :] = 0.0, 0.0
    return Product(left[None], right[None])


PRODUCTS = {
    "lost in blocks": lost_in_blocks,
    "lost beside what cancels": lost_beside_what_cancels,
    "random directions": random_directions,
    "rounded up": rounded_up,
    "rounded up, formed": rounded_up_row,
}


@pytest.mark.parametrize("make", [Ghost, Materialised])
@pytest.mark.parametrize("make_product", PRODUCTS.values(), ids=PRODUCTS)
def test_products_are_clipped_to_the_bound(make: Kind, make_product: object) -> None:
    product = make_product()  # type: ignore[operator]
    layout = torch.zeros(product.left.shape[-1], product.right.shape[-1])
    exact, summed = added(make, product, layout)
    assert 0.9 * BOUND <= summed <= BOUND
    if make is Ghost:
        assert exact <= BOUND


def test_positions_whose_squares_all_underflow_have_a_margin_too() -> None:
    """Left factors of 6e-24, of norm 0 in float32, beside right ones of 3e18; pairs cancel."""
    torch.manual_seed(0)
    half = 300
    left, right = torch.randn(half, 4) * 6e-24, torch.randn(half, 4) * 3e18
    order = torch.randperm(2 * half)
    left = torch.cat([torch.cat([left, -left])[order], torch.randn(1, 4) * 6e-30])
    right = torch.cat([torch.cat([right, right])[order], torch.randn(1, 4) * 3e18])
    product, layout = Product(left[None], right[None]), {"weight": torch.zeros(4, 4)}
    gradients = taken(Ghost, layout, {"weight": product}, [2 * half + 1])
    bound = 0.9 * l2_norm({"weight": left.double().T @ right.double()})
    factors = clipped(gradients, layout, bound)
    assert l2_norm(dict(gradients.weighted_sum(factors))) <= bound
    assert bool(gradients.coarse(factors, bound))


def test_a_chained_product_is_clipped_to_the_bound() -> None:
    """Rows that are used at norm 1, one of them 30 times shorter than the others."""
    torch.manual_seed(0)
    rows = torch.randn(300, 48)
    rows[0] /= 30.0
    chain = NormalisedRows(rows, unit_rows(rows).inverse)
    parameters = {"weight": rows}
    left, right = torch.randn(1, 200, 300), torch.randn(1, 200, 48)
    gradients = taken(Ghost, parameters, {"weight": Product(left, right, chain)})
    factors = clipped(gradients, parameters)
    assert 0.99 * BOUND <= l2_norm(dict(gradients.weighted_sum(factors))) <= BOUND


@pytest.mark.parametrize("make", [Ghost, Materialised])
@pytest.mark.parametrize("kind", ["product", "total", "rows"])
@pytest.mark.parametrize("size", [1024, 1 << 17])
def test_entries_lost_beside_a_large_one_are_clipped(make: Kind, kind: str, size: int) -> None:
    row = one_large_entry(size)[None, None]
    uses: dict[str, tuple[Term, torch.Tensor]] = {
        "product": (Product(torch.ones(1, 1, 1), row), torch.zeros(1, size)),
        "total": (Total(row), torch.zeros(size)),
        "rows": (Rows(torch.zeros(1, 1, dtype=torch.int64), row, 3), torch.zeros(3, size)),
    }
    exact, summed = added(make, *uses[kind])
    assert 0.9999 * BOUND <= summed <= BOUND
    assert exact <= BOUND


@pytest.mark.parametrize("size", [1e8, 1e6, 1e4, 100.0, 50.0, 1.0])
def test_terms_that_cancel_lose_nobody_elses(size: float) -> None:
    """A unit of +M in one pass and -M in another, with others' terms added in between.

    Its gradient is zero, and its factor 1; at M = 10⁶ it would move the others by over two bounds.
    """
    torch.manual_seed(0)
    others, layout = 100, {"w.weight": torch.zeros(4, 8)}
    rows = torch.randn(others, 1, 4)
    rows *= 0.45 / rows.norm(dim=2, keepdim=True)
    columns = torch.randn(1, 1, 8).expand(others, 1, 8)
    columns = columns / columns.norm(dim=2, keepdim=True)
    term = torch.zeros(1, 1, 4), torch.zeros(1, 1, 8)
    term[0][0, 0, 0], term[1][0, 0, 0] = size, 1.0
    sums = []
    for count in (others, others + 1):
        gradients = Ghost(Buffers(), layout, count)
        for sign in (1.0, -1.0):
            left, right = (rows, columns)
            if count > others:
                left, right = torch.cat([sign * term[0], rows]), torch.cat([term[1], columns])
            gradients.start_pass(Segments([1] * count, whole=False, tokens=[1] * count))
            gradients("w.weight", Product(left, right))
        factors, plain = clip_factors(FlatClip(l2_clip_norm=1.0), layout, gradients.squares())
        assert bool(plain.all())
        coarse = gradients.coarse(factors, 1.0)
        assert coarse.tolist() == [count > others and size > 4.0 / 2**0.5] + [False] * (count - 1)
        gradients.drop(coarse.nonzero()[:, 0])
        sums.append(dict(gradients.weighted_sum(factors.where(~coarse[:, None], 0.0))))
    assert l2_norm(add(sums[1], {"w.weight": -sums[0]["w.weight"]})) <= ROUNDING_TOLERANCE


@pytest.mark.parametrize("make", [Ghost, Materialised])
@pytest.mark.parametrize("kind", ["product", "total", "rows"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_unit_whose_terms_cancel_is_added_alone(make: Kind, kind: str, whole: bool) -> None:
    """Terms of ±M beside a small rest.

    Else how they are rounded, by the shape of the pass, is scaled up with the rest; a stationary
    point of a text that many have moved the sum by a quarter of a bound so.
    """
    for size, expected in ((1e5, True), (20.0, True), (1.0, False)):
        row = torch.tensor([[[1.0, 0.0, 0.0]]])
        values = torch.cat([size * row, -size * row, row.roll(1, 2)], dim=1)
        values = torch.cat([values, torch.tensor([[[0.5, 0.5, 0.5]]]).expand(1, 3, 3)])
        terms: dict[str, tuple[Term, torch.Tensor]] = {
            "product": (Product(torch.ones(2, 3, 2), values), torch.zeros(2, 3)),
            "total": (Total(values), torch.zeros(3)),
            "rows": (Rows(torch.ones(2, 3, dtype=torch.int64), values, 4), torch.zeros(4, 3)),
        }
        term, like = terms[kind]
        gradients = make(Buffers(), {"w": like}, 2, 0)
        gradients.start_pass(Segments([1, 1], whole=whole, tokens=[3, 3]))
        gradients("w", term)
        assert alone(gradients, {"w": like}, 0.5) == [expected, False], size


@pytest.mark.parametrize("make", [Ghost, Materialised])
def test_a_unit_of_many_positions_whose_terms_cancel_is_added_alone(make: Kind) -> None:
    """Above the positions from which `Ghost` forms a gradient twice."""
    left, right = torch.ones(1, 1000, 4), 1e4 * torch.randn(1, 1000, 6)
    right[:, 500:] = -right[:, :500]
    right[:, 0] += 1.0
    layout = {"w": torch.zeros(4, 6)}
    gradients = taken(make, layout, {"w": Product(left, right)}, [1000])
    assert alone(gradients, layout, 0.5) == [True]


@pytest.mark.parametrize("make", [Ghost, Materialised])
@pytest.mark.parametrize("rank", [2, 16, 64])
@pytest.mark.parametrize("wide", [384, 50_000])
def test_terms_of_adapters_that_cancel_are_seen_while_one_factor_is_small(
    make: Kind, rank: int, wide: int
) -> None:
    """The first factor of an adapter has small terms while the second, the wider one, is small.

    With the first alone looked at, a stationary point of a text that many have moved the sum of a
    network with adapters of rank 16 by 0.3 bounds.
    """
    torch.manual_seed(0)
    layers = range(4 if wide < 1000 else 1)
    layout = {
        f"h.{layer}.attn.c_attn.lora_{side}": torch.zeros(shape)
        for layer in layers
        for side, shape in (("A", (rank, 128)), ("B", (wide, rank)))
    }
    uses: dict[str, Term] = {}
    inputs, inside = torch.randn(1, 20, 128), torch.randn(1, 1, rank).expand(1, 20, rank)
    for layer in layers:
        outputs = 1e5 * torch.randn(1, 10, wide)
        outputs = torch.cat([outputs, -outputs], dim=1)
        outputs[:, 0, 0] += 1.0
        name = f"h.{layer}.attn.c_attn.lora_"
        uses[f"{name}B"] = Product(outputs, inside)
        uses[f"{name}A"] = Product(1e-9 * torch.randn(1, 20, rank), inputs)
    assert alone(taken(make, layout, uses, [20]), layout, 0.5) == [True]


def test_matrices_without_terms_do_not_speak_for_others() -> None:
    """Vectors are not looked at; of the first unit nothing else has terms."""
    layout = {"h.0.up": torch.zeros(4, 4), "h.0.gate": torch.zeros(4)}
    torch.manual_seed(0)
    gate, inside, outside = torch.randn(3, 2, 2, 4)
    inside[0] = 0.0
    uses: dict[str, Term] = {"h.0.gate": Total(gate), "h.0.up": Product(outside, inside)}
    assert alone(taken(Materialised, layout, uses, [2, 2]), layout, 0.5) == [True, False]


@pytest.mark.parametrize("make", [Ghost, Materialised])
def test_padding_decides_nothing_of_what_is_added_alone(make: Kind) -> None:
    """A unit just within, or just over, is so beside whatever neighbour.

    Where masses grew with the padding, a newcomer's length had 48 others added otherwise: they
    moved by 0.6 bounds.
    """
    torch.manual_seed(0)
    left, right = torch.randn(1, 4, 3), torch.ones(1, 4, 5)
    left[:, 2:] = 0.5 * torch.randn(3) - left[:, :2]
    padded = torch.nn.functional.pad
    for size in torch.linspace(0.1, 10.0, 30).tolist():
        seen = []
        for width in (4, 64):
            filled = padded(right, (0, 0, 0, width - 4), value=1.0)
            use = Product(padded(left, (0, 0, 0, width - 4)), filled)
            gradients = taken(make, {"w": torch.zeros(3, 5)}, {"w": use}, [4])
            seen.append(gradients.coarse(torch.ones(1, 1, dtype=torch.float64), size).tolist())
        assert seen[0] == seen[1]


@pytest.mark.parametrize("engine", ["ghost", "materialised"])
def test_an_ordinary_text_is_added_together(
    engine: str, materials: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even at half of what terms may come to is a user of it added alone."""
    monkeypatch.setattr("fedsim.clients.engines.per_example.gradient_terms._MOST_MASS", 2.0)
    seen = []
    too_large = Masses.too_large

    def watched(self: Masses, factors: torch.Tensor, bound: float) -> torch.Tensor:
        seen.append(too_large(self, factors, bound))
        return seen[-1]

    monkeypatch.setattr(Masses, "too_large", watched)
    make = {"ghost": ghost, "materialised": materialised}[engine]
    task = AveragedGradient(materials, group_size=4)
    parameters = materials.model.initial_parameters()
    for norm in (0.1, 1.0):
        make(cast("OpenModel", materials.model))(
            task, parameters, np.arange(20), FlatClip(l2_clip_norm=norm), 0
        )
    assert sum(len(each) for each in seen) >= 40
    assert not any(each.any() for each in seen[2:])  # the first are of made-up tokens


def test_a_scaled_side_that_underflows_is_added_alone() -> None:
    """A factor of 1e-27 times 1e-16 has a few bits. With fewer, 1.7 times the bound was added."""
    layout = {"w": torch.zeros(64, 128)}
    for bound, expected in ((1e-25, True), (1.0, False)):
        eye = torch.eye(64)[None]
        product = Product(1e-16 * eye, torch.cat([1e17 * eye, 0.0 * eye], dim=2))
        gradients = taken(Ghost, layout, {"w": product}, [64])
        factors = clipped(gradients, layout, bound)
        assert bool(gradients.coarse(factors, bound)) == expected
        moved = l2_norm(dict(gradients.weighted_sum(factors))) / bound
        assert moved <= 1.0 or expected


def test_tokens_count_at_each_of_their_experts() -> None:
    """500 tokens at 8 of 9 experts each: formed twice, or the margin would be of per cents."""
    torch.manual_seed(0)
    units, tokens, each = 3, 500, 8
    left, right = torch.randn(units, tokens * each, 6), torch.randn(units, tokens * each, 5)
    choices = torch.rand(units, tokens, 9).topk(each).indices
    parameters = {"experts": torch.zeros(9, 6, 5)}
    use = StackedProduct(left, right, choices=choices, num_matrices=9)
    gradients = taken(Ghost, parameters, {"experts": use}, [tokens] * units)
    factors = clipped(gradients, parameters)
    for unit in torch.eye(units)[:, :, None]:
        assert 0.9999 * BOUND <= l2_norm(dict(gradients.weighted_sum(factors * unit))) <= BOUND


@pytest.mark.parametrize("cut", [None, 500], ids=["one pass", "two passes"])
def test_a_unit_of_many_positions_is_formed_twice_and_clipped_to_the_bound(cut: int | None) -> None:
    """A bound for one product of 5,000 positions would take some 4 % of the clip."""
    torch.manual_seed(0)
    units, positions = 20, 5000
    left = torch.randn(units, 32, positions).mT  # laid out as no copy of it would be
    right = torch.randn(units, positions, 48)
    left[7, 0, 0] = torch.inf  # a unit that is dropped
    parameters = {"w.weight": torch.zeros(32, 48)}
    gradients = Ghost(Buffers(), parameters, units)
    for part in (slice(None, cut), slice(cut, None))[: 1 if cut is None else 2]:
        gradients.start_pass(Segments([1] * units, whole=cut is None))
        gradients("w.weight", Product(left[:, part], right[:, part]))
    factors, plain = clip_factors(FlatClip(l2_clip_norm=BOUND), parameters, gradients.squares())
    assert (~plain).nonzero().flatten().tolist() == [7]
    assert not gradients.coarse(factors, BOUND)[plain].any()
    neighbour = torch.zeros_like(factors)
    neighbour[19] = factors[19]
    before = dict(gradients.weighted_sum(neighbour))["w.weight"].clone()
    gradients.drop((~plain).nonzero()[:, 0])
    after = dict(gradients.weighted_sum(neighbour))["w.weight"]
    assert not before.isfinite().all()  # 0 times what unit 7 has
    assert torch.equal(after.where(before.isfinite(), 0.0), before.where(before.isfinite(), 0.0))
    factors = factors.where(plain[:, None], 0.0)
    for unit in (0, 6, 8, 19):
        only = torch.zeros_like(factors)
        only[unit] = factors[unit]
        assert 0.9999 * BOUND <= l2_norm(dict(gradients.weighted_sum(only))) <= BOUND
    exact = torch.einsum(
        "u,uti,utj->ij", factors[plain, 0], left[plain].double(), right[plain].double()
    )
    summed = dict(gradients.weighted_sum(factors))["w.weight"]
    assert l2_norm({"w": summed - exact}) <= ROUNDING_TOLERANCE * BOUND


def test_products_are_of_float32_whatever_torch_was_told(
    speeches: Path, materials: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TF32 and bfloat16 are coarser than the proofs suppose; a plug-in may have asked for them."""
    seen: list[list[str]] = []
    true = app.prepared

    def prepared(spec: str) -> tuple[Task, Engine, Materials]:
        task, engine, loaded = true(spec)

        def watched(
            task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
        ) -> WeightedSum:
            seen.append([backend.fp32_precision for backend in BACKENDS])
            return engine(task, parameters, keys, clip, round)

        return task, watched, loaded

    monkeypatch.setattr(app, "prepared", prepared)
    spec = client_spec(small_config(speeches), TASKS["fedsgd"])
    executor = GridExecutor(InProcessGrid(app.app), spec)
    before = TORCH.fp32_precision
    torch.set_float32_matmul_precision("medium")
    TORCH.fp32_precision = "tf32"
    try:
        executor.clipped_sum(
            materials.model.initial_parameters(), np.arange(4), FlatClip(l2_clip_norm=1.0), 0
        )
        assert [backend.fp32_precision for backend in BACKENDS] == ["tf32", "bf16", "tf32", "tf32"]
    finally:
        torch.set_float32_matmul_precision("highest")
        TORCH.fp32_precision = before
    assert seen == [["ieee"] * 4]
