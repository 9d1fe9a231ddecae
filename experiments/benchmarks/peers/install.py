"""Build the peers' environment: `python -m fedsim.experiments.benchmarks.peers.install`.

pfl and Opacus need a separate environment: their version pins conflict with Flower's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from fedsim.errors import ConfigError
from fedsim.utils.files import cache_dir, write_atomically

PACKAGES = (
    "torch==2.13.0",
    "numpy==2.4.6",
    "transformers==5.23.0",
    "pfl==0.6.0",
    "opacus==1.6.0",
)
COMMAND = "python -m fedsim.experiments.benchmarks.peers.install"
_DONE = "packages.json"


def python() -> Path:
    """Return the environment's interpreter.

    Raises:
        ConfigError: the environment is missing or has other versions; the message names the
            command.
    """
    folder = cache_dir() / "peers"
    done = folder / _DONE
    if not done.is_file():
        raise ConfigError(f"bench = 'peers': no environment in {folder}; build it with `{COMMAND}`")
    if json.loads(done.read_text(encoding="utf-8")) != list(PACKAGES):
        raise ConfigError(
            f"bench = 'peers': the environment in {folder} has other versions; "
            f"build it again with `{COMMAND}`"
        )
    return folder / "bin" / "python"


def install() -> Path:
    """Build the environment, replacing an existing one, and return its interpreter."""
    folder = cache_dir() / "peers"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)  # noqa: S603
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES]
    subprocess.run(pip, check=True)  # noqa: S603
    write_atomically(folder / _DONE, json.dumps(PACKAGES))  # last: marks it as complete
    return python()


if __name__ == "__main__":
    sys.stdout.write(f"{install()}\n")
