"""Count the work of private gradients over non-private ones: arithmetic and memory passes.

Networks of real size are on torch's meta device, where tensors have shapes but no values. The
counts hold for pass sizes of a CPU. A GPU has larger passes and shares more work between units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, LlamaConfig, PreTrainedConfig

from fedsim.clients.engine_choice import choice, choose_engine
from fedsim.clients.engines.per_example import batched, chunks
from fedsim.clients.models.pretraining import random_start
from fedsim.clients.models.tokenizers import byte_pair_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig
from fedsim.experiments.benchmarks.engines.cases import InMemoryGradients, Workload, random_units
from fedsim.experiments.benchmarks.engines.floor import floor
from fedsim.experiments.benchmarks.engines.measured import CLIP
from fedsim.experiments.benchmarks.engines.networks import CONFIGS
from fedsim.experiments.benchmarks.timing import Row
from fedsim.tensors import Tensors

_LENGTHS = (128, 512, 2048)  # tokens of a unit
_TOKENS = 8192  # tokens of all units together
MODELS: Mapping[str, PreTrainedConfig] = {
    **{name: CONFIGS[name] for name in ("gpt2-small", "gpt2-medium", "smollm2-135m")},
    "llama-3.2-1b": LlamaConfig(
        vocab_size=128_256,
        hidden_size=2_048,
        intermediate_size=8_192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    ),
}


def run(
    models: Mapping[str, PreTrainedConfig] = MODELS, lengths: tuple[int, ...] = _LENGTHS
) -> list[Row]:
    """Return a row for each network and number of tokens per unit, for the engine of "auto".

    All parameters are trained, in float32; each unit is one example. `ratio` divides the private
    floating-point operations of products by the non-private ones. `details["passes"]` has the bytes
    read and written per unit, in float32 copies of the parameters; see `Bytes`. The units of a
    chunk share work that is done once per chunk. `details["passes_of_a_call"]` counts the work done
    once per call of up to 128 units: clearing the sums, and adding float32 sums to float64 sums.
    """
    return [_row(name, config, tokens) for name, config in models.items() for tokens in lengths]


def _row(name: str, config: PreTrainedConfig, tokens: int) -> Row:
    work = _on_meta(name, config, tokens)
    num_bytes = sum(value.nbytes for value in work.parameters.values())
    seen = Bytes(work.parameters)  # over all calls, as buffers are kept
    engine = choice(tokens, num_bytes, chunks.CPU_BYTES)
    chosen = choose_engine(engine, work.task, work.model, tokens)

    def private(num_units: int) -> tuple[int, int]:
        keys = work.keys[:num_units]
        return counted(lambda: chosen(work.task, work.parameters, keys, CLIP, 0), seen)

    count = len(work.units) // 2
    with patch.object(batched, "verify"):  # meta tensors have no numbers to compare
        private(1)
    some, twice = private(count), private(2 * count)
    flops = (twice[0] - some[0]) / count
    half = replace(work, units=work.units[:count])
    plain = counted(lambda: floor(half, count), seen)[0] / count
    passes = (twice[1] - some[1]) / count / num_bytes
    once = some[1] / num_bytes - count * passes
    return Row(
        benchmark="work",
        case=f"{name}, {tokens:,} tokens a unit",
        engine=engine,
        seconds=None,
        ratio=flops / plain,
        details={"passes": passes, "passes_of_a_call": once, "flops": flops, "units": 2 * count},
    )


def _on_meta(name: str, config: PreTrainedConfig, tokens: int) -> Workload:
    config = deepcopy(config)
    if isinstance(config, GPT2Config):  # positions for the longest units
        config.n_positions = max(_LENGTHS)
    with torch.device("meta"):
        module = random_start(config, seed=0)
    model = TransformersModel(
        module,
        byte_pair_tokenizer(2000),
        ModelConfig(name_or_path=name, attention="sdpa"),
        origin="No weights.",
        sequence_length=tokens,
        device="meta",
    )
    # fedsim's own layer asks for the state of autocast, which the meta device does not have.
    cast(nn.Module, module.get_output_embeddings()).__class__ = nn.Linear  # type: ignore[no-untyped-call]
    units = random_units([1] * (_TOKENS // tokens), tokens, model.vocabulary_size)
    parameters = {key: value.detach() for key, value in model.module.named_parameters()}
    return Workload(model, parameters, units, InMemoryGradients(model, units))


def counted(compute: Callable[[], object], seen: Bytes) -> tuple[int, int]:
    """Return the operations of products and the `Bytes` of `compute` on the meta device."""
    counter, aten = FlopCounterMode(display=False), torch.ops.aten
    # torch does not count in-place products that add.
    for in_place, known in ((aten.addmm_, aten.addmm), (aten.baddbmm_, aten.baddbmm)):
        counter.flop_registry[in_place] = counter.flop_registry[known]
    before = seen.total
    with counter, seen:
        compute()
    return counter.get_total_flops(), seen.total - before


_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}
_OF_ROWS = {"embedding", "index_add_", "index_put_", "index_select", "gather"}


class Bytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes read and written of tensors as large as a parameter.

    These are gradients of matrices and tables (of one or more units), their sums, and casts and
    copies of them and of the weights. Each operation reads its inputs and writes its outputs;
    caches are ignored. Not counted: weights read in products and rows of look-ups, as in any
    training, and activations and vectors.

    Values that the host reads from the meta device are 0.

    Attributes:
        total: bytes so far.
    """

    def __init__(self, parameters: Tensors) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        matrices = [value for value in parameters.values() if value.ndim > 1]
        self._shapes = {shape for v in matrices for shape in (v.shape, v.shape[::-1])}
        self._numel = sum(value.numel() for value in parameters.values())
        self._weights = {_storage(value) for value in matrices}
        self._others: dict[int, Any] = {}  # held, so no other tensor reuses their memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and first.is_meta:
            if name == "_local_scalar_dense":
                return first.dtype.is_floating_point and 0.0
            if name == "_to_copy" and kwargs.get("device", first.device).type != "meta":
                return torch.zeros(first.shape, dtype=kwargs.get("dtype", first.dtype))
            if "unique" in name:  # assume that all values are distinct
                return first.flatten(), torch.empty_like(first), first.flatten()[:0]
        result = func(*args, **kwargs)
        self._count(name, _tensors((args, kwargs)), _tensors(kwargs.get("out")), _tensors(result))
        return result

    def _count(
        self,
        name: str,
        inputs: list[torch.Tensor],
        out: list[torch.Tensor],
        outputs: list[torch.Tensor],
    ) -> None:
        if name in _OF_ROWS:
            return
        before = {_storage(value) for value in inputs}
        changes = name.endswith("_") or bool(out)
        fresh = [value for value in outputs if _storage(value) not in before]
        if not changes and not fresh:  # a view
            return
        product = name.strip("_") in _PRODUCTS
        makes = name.startswith("new_") or name.endswith("_like")  # reads nothing
        known = self._others.keys() if product else self._others.keys() | self._weights
        read = [value for value in inputs if _storage(value) in known and not makes]
        for value in fresh:
            if self._is_large(name, value, read, inputs, product):
                self._others[_storage(value)] = value.untyped_storage()
                self.total += 0 if "empty" in name else value.nbytes
        if name in ("copy_", "zero_", "fill_"):
            out = inputs[:1]
        self.total += sum(value.nbytes for value in read if not any(value is o for o in out))
        if changes:
            self.total += sum(v.nbytes for v in outputs if _storage(v) in self._others)

    def _is_large(
        self,
        name: str,
        value: torch.Tensor,
        read: list[torch.Tensor],
        inputs: list[torch.Tensor],
        product: bool,
    ) -> bool:
        """Return whether a new tensor has the size of a matrix and is not an activation."""
        of_weights = any(_storage(given) in self._weights for given in inputs)
        has_shape = value.shape[-2:] in self._shapes or value.numel() == self._numel
        if product:  # products with a weight are activations; batched ones are attention scores
            return has_shape and not of_weights and value.ndim == 2
        if name == "embedding_dense_backward" or "empty" in name or "zeros" in name:
            return has_shape
        return any(given.numel() <= value.numel() for given in read)


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _tensors(values: object) -> list[torch.Tensor]:
    return [
        value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and value.is_meta
    ]
