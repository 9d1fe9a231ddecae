"""tiny-gpt: a GPT-2 small enough to fine-tune on a laptop, with a vocabulary of 2,000."""

from __future__ import annotations

from transformers import GPT2Config

from fedsim.clients.models.pretraining import Schedule, describe_origin, pretrained
from fedsim.clients.models.tokenizers import byte_pair_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig

NAME = "tiny-gpt"
VOCABULARY_SIZE = 2000
POSITIONS = 128
DEFAULT_STEPS = 300


def load(
    config: ModelConfig, *, seed: int = 0, sequence_length: int = 64, device: str = "cpu"
) -> TransformersModel:
    """Load tiny-gpt: width 128, 4 layers, 4 heads, tied embeddings, 1.07 M parameters.

    Its byte-level BPE and its initial parameters come from public text alone. The first load
    computes them (a minute or two on a CPU); later loads read them from the cache.

    Args:
        config: model config; `pretraining_steps` = 0 gives random initial parameters.
        seed: seed of the run; it determines the initial adapters.
        sequence_length: maximum length of an example, up to 128 tokens.
        device: device of the logits, in torch's notation.

    Raises:
        ConfigError: sequences are too long, or no parameter is trainable.
    """
    tokenizer = byte_pair_tokenizer(VOCABULARY_SIZE)
    network = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=POSITIONS,
        n_embd=128,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    steps = DEFAULT_STEPS if config.pretraining_steps is None else config.pretraining_steps
    # Blocks use all positions, so every position is pre-trained.
    schedule = Schedule(steps=steps, learning_rate=2e-3, batch_size=16, block_length=POSITIONS)
    return TransformersModel(
        pretrained(NAME, network, tokenizer, schedule),
        tokenizer,
        config,
        origin=describe_origin(schedule),
        seed=seed,
        sequence_length=sequence_length,
        device=device,
    )
