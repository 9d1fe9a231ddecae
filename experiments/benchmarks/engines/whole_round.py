"""A whole round in this process, and what of it is gradients."""

from __future__ import annotations

import time
from dataclasses import replace

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsim.clipping import Clip
from fedsim.execution import Engine
from fedsim.experiments.benchmarks.engines.cases import Workload
from fedsim.experiments.benchmarks.grids.null_client import null_spec
from fedsim.experiments.benchmarks.grids.population import plan_of
from fedsim.experiments.benchmarks.server.large_round import timed_reply
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.records import ParametersOnDevice, ShardRequest
from fedsim.round import run_round
from fedsim.state import ServerState


class WholeRound:
    """`run_round` over all units by the grid of this process; called, it does the second round.

    The server's part is on the CPU, as in a run: estimate, noise, ledger, Adam's step, and the way
    of parameters and sum between it and the engine.

    Attributes:
        ratios: of each round that was done, its seconds to those of its engine.
    """

    def __init__(self, engine: Engine, work: Workload, clip: Clip) -> None:
        app, on_device = ClientApp(), ParametersOnDevice()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            request = ShardRequest.from_content(message.content)
            parameters = on_device(request.parameters, work.model.device)
            reply, taken = timed_reply(message, request, parameters, work.task, engine)
            self._engine_seconds = taken
            return reply

        self._executor = GridExecutor(InProcessGrid(app), null_spec())
        everybody = len(work.units)
        self._plan = replace(plan_of(everybody, everybody), clip=clip)
        self._engine_seconds = 0.0
        self.ratios: list[float] = []
        self._state = ServerState(0, work.model.initial_parameters())
        after, _ = run_round(self._state, self._plan, self._executor)
        # With the moments of the first round, and parameters at which gradients stay what they are.
        self._state = replace(after, parameters=self._state.parameters)

    def __call__(self) -> None:
        """Do the round."""
        started = time.perf_counter()
        run_round(self._state, self._plan, self._executor)
        self.ratios.append((time.perf_counter() - started) / self._engine_seconds)
