"""Sample texts from a model, for the report: before and after training."""

from __future__ import annotations

import torch

from fedsim.language_model import LanguageModel
from fedsim.seeding import stream
from fedsim.tensors import Tensors

# What a report shows.
SAMPLES, SAMPLE_TOKENS = 3, 48


@torch.no_grad()
def sample_texts(
    model: LanguageModel, parameters: Tensors, count: int, max_tokens: int, seed: int
) -> list[str]:
    """Return texts drawn from the model's own distribution, from the begin token on.

    No prompt, so private words appear only if the model repeats them. The draws are a function of
    the seed, the same for any parameters: before and after differ by what was learnt alone.

    Args:
        model: the network.
        parameters: its weights.
        count: number of texts.
        max_tokens: most tokens of a text, the begin token included; an end token ends it earlier.
        seed: of the run.
    """
    begin, end = model.encode([""])[0]
    on_device = {name: value.to(model.device) for name, value in parameters.items()}
    tokens = torch.full((count, 1), begin, device=model.device)
    uniform = torch.from_numpy(stream(seed, "samples").random((max_tokens, count)))
    for step in range(1, max_tokens):
        logits = model.logits(on_device, tokens)[:, -1].double().cpu()
        # A model that diverged gives NaN: it then writes its first word again and again.
        cumulative = torch.softmax(logits, dim=-1).nan_to_num().cumsum(dim=-1)
        chosen = torch.searchsorted(cumulative, uniform[step][:, None] * cumulative[:, -1:])
        following = chosen.clamp(max=model.vocabulary_size - 1).to(model.device)
        tokens = torch.cat([tokens, following], dim=1)
    return [model.decode(_until(row, end)) for row in tokens[:, 1:].tolist()]


def _until(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids
