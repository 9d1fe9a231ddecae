"""The example's ServerApp: Flower's quickstart with a private strategy and its promise."""

from __future__ import annotations

import logging

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedsim.experiments.flower_quickstart.client_app import load_data, make_model
from fedsim.strategies.flower import DPFedAvg

log = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for `num-server-rounds` (default 10) over the grid and log the promise."""
    arrays = ArrayRecord(dict(make_model().state_dict()))
    strategy = DPFedAvg(
        num_users=100, cohort_size=20, l2_clip_norm=0.5, noise_multiplier=1.0, delta=1e-3
    )
    strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=int(context.run_config.get("num-server-rounds", 10)),
        evaluate_fn=evaluate,
    )
    log.info("%s", strategy.privacy_statement())


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the accuracy on examples that do not belong to a user."""
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    inputs, classes = load_data(user=-1, num_examples=500)
    with torch.no_grad():
        right = model(inputs).argmax(dim=1) == classes
    return MetricRecord({"accuracy": right.double().mean().item()})
