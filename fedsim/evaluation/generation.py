"""Sample texts from a model, for the report: before and after training."""

from __future__ import annotations

import torch

from fedsim.language_model import LanguageModel
from fedsim.seeding import stream
from fedsim.tensors import Tensors

SAMPLES, SAMPLE_TOKENS = 3, 48  # number and length of the samples in a report


@torch.no_grad()
def sample_texts(
    model: LanguageModel, parameters: Tensors, count: int, max_tokens: int, seed: int
) -> list[str]:
    """Return texts sampled from the model, starting with the begin token.

    There is no prompt, so private words appear only if the model repeats them. The random numbers
    depend only on the seed: texts before and after training differ only through the parameters.

    Args:
        model: the network.
        parameters: weights of the network.
        count: number of texts.
        max_tokens: maximum number of tokens per text, with the begin token; an end token ends the
            text.
        seed: seed of the run.
    """
    begin, end = model.encode([""])[0]
    on_device = {name: value.to(model.device) for name, value in parameters.items()}
    tokens = torch.full((count, 1), begin, device=model.device)
    uniform = torch.from_numpy(stream(seed, "samples").random((max_tokens, count)))
    for step in range(1, max_tokens):
        logits = model.logits(on_device, tokens)[:, -1].double().cpu()
        # A diverged model gives NaN, which becomes 0: its text repeats token 0.
        cumulative = torch.softmax(logits, dim=-1).nan_to_num().cumsum(dim=-1)
        chosen = torch.searchsorted(cumulative, uniform[step][:, None] * cumulative[:, -1:])
        following = chosen.clamp(max=model.vocabulary_size - 1).to(model.device)
        tokens = torch.cat([tokens, following], dim=1)
    return [model.decode(_until(row, end)) for row in tokens[:, 1:].tolist()]


def _until(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids
