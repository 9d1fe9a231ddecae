"""A whole round in this process, and the gradients' share of it."""

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
    """`run_round` over all units with the in-process grid; a call runs the second round.

    The server's part is on the CPU, as in a run: estimate, noise, ledger, Adam's step, and the
    transfer of parameters and sum to and from the engine.

    Attributes:
        ratios: seconds of each round over those of its engine.
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
        # Start from the moments of the first round, with parameters that leave gradients unchanged.
        self._state = replace(after, parameters=self._state.parameters)

    def __call__(self) -> None:
        """Run the round."""
        started = time.perf_counter()
        run_round(self._state, self._plan, self._executor)
        self.ratios.append((time.perf_counter() - started) / self._engine_seconds)
