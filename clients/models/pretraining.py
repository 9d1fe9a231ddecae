"""Pre-train the built-in models on public text, once; later runs read the cache.

McMahan et al. 2018, App. B: starting from a model of public text is likely the best approach in
practice. The text differs from the fine-tuning text, so no budget is spent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from fedsim.clients.models.tokenizers import public_text
from fedsim.errors import ConfigError
from fedsim.utils.files import (
    cache_dir,
    folder_beside,
    naming,
    rename_synced,
    sync_all,
    writable_cache_dir,
)
from fedsim.utils.terminal import quietly

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """Pre-training schedule of a built-in model; part of the cache key.

    Attributes:
        steps: AdamW steps; 0 keeps the random start.
        learning_rate: peak learning rate, reached after `warmup_steps`; then a cosine decay to a
            tenth.
        warmup_steps: steps of linear rise.
        batch_size: blocks per step.
        block_length: tokens per block, cut at random places out of the concatenated speeches.
        seed: seed of the random initial parameters and of the blocks. It is not the run's seed:
            every run starts from the same model.
    """

    steps: int
    learning_rate: float
    warmup_steps: int = 20
    batch_size: int = 32
    block_length: int = 64
    seed: int = 20180217

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step; steps count from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


def pretrained(
    name: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, schedule: Schedule
) -> PreTrainedModel:
    """Return the pre-trained network, from the cache if possible.

    The key covers the config, tokenizer, text, schedule and the versions of torch and
    transformers. The folder is created atomically; if two processes create it at the same time, one
    wins and both use it. Training is in float32 on the CPU. Its last bits may differ between
    machines; copy the cached folder if they matter.

    Args:
        name: prefix of the folder's name under `cache_dir()/models`.
        config: config of an architecture in `AutoModelForCausalLM`.
        tokenizer: tokenizer with an end token, which separates speeches.
        schedule: steps, learning rate and batches.

    Raises:
        ConfigError: the cached folder is damaged, or cannot be written.
    """
    key = _key(config, tokenizer, schedule)
    folder = cache_dir() / "models" / f"{name}-{key}"
    if not folder.exists():
        writable_cache_dir()  # fail before the training, which takes minutes
        module = random_start(config, schedule.seed)
        if schedule.steps:
            _train(module, _packed(tokenizer), schedule, name)
        _keep(module, tokenizer, folder)
    try:
        with quietly():
            module = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                use_safetensors=True,
                trust_remote_code=False,
            )
    except Exception as error:  # transformers and its dependencies raise many kinds of errors
        raise ConfigError(
            f"the pre-trained {name} kept in {folder} is damaged: {error}; delete it to train it "
            "again"
        ) from error
    return module


def random_start(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """Return a network with random weights; the global generator's state does not change."""
    with torch.random.fork_rng(devices=[]), quietly():
        torch.manual_seed(seed)
        module: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32, attn_implementation="eager"
        )
    module.eval()  # type: ignore[no-untyped-call]
    return module


def describe_origin(schedule: Schedule) -> str:
    """Return the report's sentence on the origin of vocabulary and initial parameters."""
    words = sum(len(text.split()) for text in public_text())
    start = (
        f"The starting point was pre-trained for {schedule.steps} steps on"
        if schedule.steps
        else "The starting point is random, and the vocabulary alone comes from"
    )
    vocabulary = ", and the vocabulary was learned from them" if schedule.steps else ""
    return (
        f"{start} public text: the eleven history plays ({words:,} words), which are not part of "
        f"the private data{vocabulary}."
    )


def _train(module: PreTrainedModel, stream: torch.Tensor, schedule: Schedule, name: str) -> None:
    """Train `module` in place by the schedule."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=schedule.learning_rate, weight_decay=0.1)
    generator = torch.Generator().manual_seed(schedule.seed)
    within_block = torch.arange(schedule.block_length + 1)
    last = len(stream) - len(within_block)
    logger.info("pre-training %s on public text: %d steps", name, schedule.steps)
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate_at(step)
        starts = torch.randint(last + 1, (schedule.batch_size, 1), generator=generator)
        block = stream[starts + within_block]
        logits = module(block[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()


def _packed(tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Return the ids of all public speeches, concatenated, with begin and end tokens."""
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    encoded = tokenizer(list(public_text()), add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor([token for ids in encoded for token in (begin, *ids, end)])


def _keep(module: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a temporary folder, then rename it: an existing folder is always complete."""
    with naming(folder), folder_beside(folder) as temporary:
        with quietly():
            module.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
        sync_all(temporary)
        try:
            rename_synced(temporary, folder)
        except OSError:
            if not folder.exists():  # else another process was first; use its folder
                raise


def _key(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, schedule: Schedule) -> str:
    facts = {
        "config": config.to_dict(),
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "text": public_text(),
        "schedule": asdict(schedule),
        "versions": [torch.__version__, transformers.__version__],
    }
    content = json.dumps(facts, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest()[:16]
