"""The example's ClientApp: plain Flower without privacy code; one node is one user."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


def make_model() -> nn.Linear:
    """Return the model: a linear classifier of ten numbers into two classes, starting at zero."""
    model = nn.Linear(10, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def load_data(user: int, num_examples: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a user's synthetic examples, (num_examples, 10), and classes; always the same."""
    generator = torch.Generator().manual_seed(user % 2**31)
    inputs = torch.randn(num_examples, 10, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the user's examples, starting at the received arrays; return the new arrays."""
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs, classes = load_data(context.node_id)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), classes)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(inputs)})
    content = RecordDict({"arrays": ArrayRecord(dict(model.state_dict())), "metrics": metrics})
    return Message(content, reply_to=message)
