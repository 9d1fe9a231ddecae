"""The ClientApp of `flwr run`: fedsim's own, in a Ray of this run's own.

Flower's simulation engine imports it before it starts Ray, and would attach to any Ray that runs on
this machine: there it may wait for free cores without end.
"""

from __future__ import annotations

import os

from fedsim.registry import resolve

os.environ["RAY_ADDRESS"] = os.environ.get("RAY_ADDRESS") or "local"

app = resolve("client_apps", "default", "clientapp")
