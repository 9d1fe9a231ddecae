"""mcmahan-lstm: the word-level LSTM that DP-FedAvg was shown on (McMahan et al. 2018, App. B)."""

from __future__ import annotations

from clients.language_model import TransformersModel
from clients.lstm_modules import McMahanLstmConfig
from clients.pretraining import Schedule, describe_origin, pretrained
from clients.tokenizers_builtin import word_tokenizer
from fedsim.config import ModelConfig

NAME = "mcmahan-lstm"
VOCABULARY_SIZE = 10_000
DEFAULT_STEPS = 220


def load(
    config: ModelConfig, *, seed: int = 0, sequence_length: int = 64, device: str = "cpu"
) -> TransformersModel:
    """Load mcmahan-lstm: 10,000 words, 1.35 M parameters.

    Its dictionary and its starting point come from public text alone, as in the paper; the
    first load makes them (a minute or two on a CPU), later ones read them from the cache.

    Args:
        config: `pretraining_steps` may be 0 for a random start.
        seed: the run's seed; adapters start from it.
        sequence_length: the longest example, in words; any length will do.
        device: where logits are to be computed, in torch's spelling.

    Raises:
        ConfigError: nothing to train.
    """
    tokenizer = word_tokenizer(VOCABULARY_SIZE)
    network = McMahanLstmConfig(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    steps = DEFAULT_STEPS if config.pretraining_steps is None else config.pretraining_steps
    schedule = Schedule(steps=steps, learning_rate=3e-3)
    return TransformersModel(
        pretrained(NAME, network, tokenizer, schedule),
        tokenizer,
        config,
        origin=describe_origin(schedule),
        seed=seed,
        sequence_length=sequence_length,
        device=device,
    )
