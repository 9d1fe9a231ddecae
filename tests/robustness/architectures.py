"""Every causal architecture of transformers, small and random: which engine takes it, how exactly.

`python -m tests.robustness.architectures [NAME]...`; names are those of `model_type`.
"""

from __future__ import annotations

import logging
import multiprocessing
import re
import resource
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from logging.handlers import MemoryHandler
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.engines.per_example.verification import made_up_unit
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clients.models.loading import load
from fedsim.clients.models.tokenizers import word_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clipping import Clip, FlatClip, NoClip
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError
from fedsim.execution import Engine
from fedsim.language_model import check_causal
from fedsim.tensors import Tensors, l2_norm, zeros_like
from fedsim.utils.terminal import quietly
from tests.contracts.definition import CLIP_MARGIN, plain_mean
from tests.contracts.layer_samples import GivenUnits, ragged_units
from tests.helpers.small_networks import LENGTH, WORDS, small_network

NAMES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
BOUNDS = {"clipped": CLIP_MARGIN, "definition": 5e-5, "": 1e-5}
"""The most of a relative difference that is called so; rows of the definition have other lengths,
by which Gemma 4 rounds by 1.03e-5."""

SECONDS, MEMORY = 300, 12 << 30  # of one architecture
AT_ONCE = 2

_TIES = "which of several keys of one score sparse attention takes depends on the padded length"
KNOWN = dict.fromkeys(("deepseek_v32", "deepseek_v4", "glm_moe_dsa", "hy_v4"), _TIES)
"""Differences that are no failure, and why."""

log = logging.getLogger("tests.robustness")


@dataclass
class Row:
    """What came out for an architecture.

    Attributes:
        name: its `model_type`.
        decoder: it was tried with `is_decoder`, as it is refused without.
        not_tried: why there is no small network of it.
        error: what should not have happened.
        takes: the engine that computes under `auto`, or why it is refused: with "all" parameters,
            with "lora".
        uncovered: the layer that has no rule, where that is why it is not computed by one.
        differences: relative, by what was compared.
    """

    name: str
    decoder: bool = False
    not_tried: str = ""
    error: str = ""
    takes: dict[str, str] = field(default_factory=dict)
    uncovered: dict[str, str] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)

    @property
    def trained(self) -> bool:
        return bool(self.takes) and not self.takes["all"].startswith("refused")

    @property
    def failures(self) -> list[str]:
        """The error, and differences beyond the bound that are not known."""
        lines = [
            f"{what}: {value:.1e}"
            for what, value in self.differences.items()
            if not value <= next(most for name, most in BOUNDS.items() if name in what)  # also NaN
            and self.name not in KNOWN
        ]
        return [self.error, *lines] if self.error else lines


def tried(name: str, folder: Path) -> Row:
    """Build, load, check and compute an architecture; what goes wrong is in the row."""
    row = _tried(Row(name), folder / "plain")
    if not row.trained and hasattr(CONFIG_MAPPING[name], "is_decoder"):
        decoder = _tried(Row(name, decoder=True), folder / "decoder", is_decoder=True)
        row = decoder if decoder.trained or row.not_tried else row
    return row


def _tried(row: Row, folder: Path, **given: object) -> Row:
    try:
        small_network(row.name, **given).save_pretrained(folder / "base")
        AutoModelForCausalLM.from_pretrained(folder / "base")
    except Exception as error:  # transformers has errors of all kinds
        row.not_tried = _in_a_line(error)
        return row
    word_tokenizer(WORDS).save_pretrained(folder / "base")
    for kind, rank in (("all", 0), ("lora", 2)):
        config = ModelConfig(name_or_path=str(folder / "base"), lora_rank=rank)
        try:
            model = load(config, sequence_length=LENGTH)
            check_causal(model, "", LENGTH)
        except ConfigError as refused:
            reason = re.sub(r"^.*?: (\[\S+ )?", "", " ".join(str(refused).split()))
            row.takes[kind] = f"refused: {re.split(r'[.] | [(]', reason)[0]}"
            continue
        try:
            torch.manual_seed(0)
            start = model.initial_parameters()
            parameters = {n: v + 0.05 * torch.randn(v.shape) for n, v in start.items()}
            found = _computed(row, kind, model, parameters) | _read_back(model, parameters, folder)
            row.differences |= {f"{kind}, {what}": value for what, value in found.items()}
        except Exception as error:
            line = f"{kind}: {_in_a_line(error)}".replace(str(folder), row.name)
            row.error = row.error or line
    return row


def _computed(
    row: Row, kind: str, model: TransformersModel, parameters: Tensors
) -> dict[str, float]:
    """Note the engine that `auto` takes; return how far apart sums are."""
    units = ragged_units()[:6]
    task = GivenUnits(model, units)

    def total(engine: Engine, keys: Sequence[int], clip: Clip | None = None) -> Tensors:
        return engine(task, parameters, np.array(keys), clip or NoClip(), 0).values

    defined, norms = zeros_like(parameters, torch.float64), []
    for unit in units:
        mean = plain_mean(model, unit, parameters)
        norms.append(l2_norm(mean))
        for n, value in mean.items():
            defined[n] += unit.weight * value
    clip = FlatClip(l2_clip_norm=sorted(norms)[3])  # some are above, some below
    reference = total(loop, range(6))
    clipped = total(loop, range(6), clip)
    found = {"loop and the definition": _apart(reference, defined)}
    logger, said = logging.getLogger("fedsim"), MemoryHandler(capacity=1000)
    logger.setLevel(logging.INFO)
    logger.addHandler(said)
    engines: dict[str, Engine] = {"auto": choose_engine("auto", task, model, LENGTH)}
    engines |= {"materialised": materialised(model), "ghost": ghost(model)}
    vmap = VmapEngine(model)
    if vmap.refused(parameters, made_up_unit(model)) is None:
        engines["vmap"] = vmap
    for name, engine in engines.items():
        whole, first, rest = (total(engine, keys) for keys in (range(6), [0], range(1, 6)))
        both = {n: first[n] + rest[n] for n in whole}
        if name == "auto":
            row.takes[kind], row.uncovered[kind] = _chosen(said)
        found |= {
            f"{name} and loop": _apart(whole, reference),
            f"{name} and loop, clipped": _apart(total(engine, range(6), clip), clipped),
            f"{name}, with and without others": _apart(both, whole),
        }
    logger.removeHandler(said)
    return found


def _read_back(model: TransformersModel, parameters: Tensors, folder: Path) -> dict[str, float]:
    tokens, found = torch.arange(1, 25).view(2, 12), {}
    with torch.no_grad():
        model.save(parameters, folder / "saved")
        wanted = {"": model.logits(parameters, tokens)}
        places = {"saved": ModelConfig(name_or_path=str(folder / "saved"))}
        if model.is_adapter:
            base, adapter = str(folder / "base"), folder / "adapter"
            model.save_adapter(parameters, adapter)
            places["adapter"] = ModelConfig(name_or_path=base, adapter=str(adapter))
        for name, config in places.items():
            again = load(config, sequence_length=LENGTH)
            computed = {"": again.logits(again.initial_parameters(), tokens)}
            found[f"{name}, read back"] = _apart(computed, wanted)
    return found


def _apart(left: Tensors, right: Tensors) -> float:
    """Return ‖left − right‖/‖right‖, NaN where there is nothing to compare."""
    norm = l2_norm(right)
    return l2_norm({n: left[n] - right[n] for n in right}) / norm if norm else float("nan")


def _chosen(said: MemoryHandler) -> tuple[str, str]:
    """Return the engine that computes by what was logged, and the layer that has no rule."""
    text = "\n".join(record.getMessage() for record in said.buffer)
    chosen = re.search(r": engine (\w+),", text)
    layer = re.search(r"no layer rule for (.*?)(?:; computing|, and |$)", text, re.MULTILINE)
    engine = "loop" if "computing by loop" in text or not chosen else chosen[1]
    return engine, layer[1] if layer else ""


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _child(name: str, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, quietly():
        sender.send(tried(name, Path(folder).resolve()))


def in_its_own_process(name: str) -> Row:
    """Try an architecture in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(name, sender))
    process.start()
    sender.close()
    row = Row(name, error=f"more than {SECONDS} s")
    try:
        if receiver.poll(SECONDS):
            row = receiver.recv()
            process.join(SECONDS)
    except EOFError:
        process.join()
        row.error = f"its process ended with {process.exitcode}"
    process.kill()
    process.join()
    return row


def sweep(names: Sequence[str]) -> list[Row]:
    """Try architectures by name, each in its own process."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tasks = {pool.submit(in_its_own_process, name): name for name in names}
        for number, task in enumerate(as_completed(tasks), start=1):
            log.info("%d of %d: %s", number, len(names), "; ".join(_shown(task.result())))
        return [task.result() for task in tasks]


def _shown(row: Row) -> tuple[str, str, str]:
    """Return what `auto` takes with all parameters, what with adapters, and remarks."""
    whole = adapters = "FAILED" if row.failures else "not tried"
    if row.takes and not row.failures:
        whole, adapters = row.takes["all"], row.takes["lora"]
    layer = re.sub(r".*\((\w+)\)", r"\1", row.uncovered.get("all", ""))
    notes = ["with `is_decoder`" * row.decoder, layer, row.not_tried, *row.failures]
    notes += [KNOWN[row.name]] if row.name in KNOWN else []
    return whole, adapters, "; ".join(filter(None, notes)).replace("|", "/")


def markdown(rows: Sequence[Row]) -> str:
    """Return a table of what `auto` takes, or why nothing."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: row.name):
        whole, adapters, notes = _shown(row)
        groups.setdefault((whole, adapters), []).append(f"`{row.name}`{notes and f' ({notes})'}")
    lines = ["| all parameters | adapters | | architectures |", "|---|---|---:|---|"]
    for (whole, adapters), names in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {whole} | {adapters} | {len(names)} | {', '.join(names)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    rows = sweep(sys.argv[1:] or NAMES)
    sys.stdout.write(markdown(rows) + "\n")
    sys.exit(any(row.failures for row in rows))
