"""The ClientApp of `flwr run`: that of fedsim, with a separate Ray for the run.

Flower's simulation engine imports this module before it starts Ray. It would attach to any Ray that
runs on this machine, and could wait there forever for free cores.
"""

from __future__ import annotations

import os

from fedsim.registry import resolve

os.environ["RAY_ADDRESS"] = os.environ.get("RAY_ADDRESS") or "local"

app = resolve("client_apps", "default", "clientapp")
