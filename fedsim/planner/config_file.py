"""Write the planned config: TOML for `fedsim run`, with the reasons as comments."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from fedsim.config import Config
from fedsim.errors import ConfigError, about
from fedsim.utils.files import write_atomically

_MARK = "# Planned by `fedsim plan`"

CLIP_NORM = (
    "The clip norm is a quarter of the median norm of updates at the starting model: nearly all "
    "are clipped to it, so that they weigh alike and a smaller norm would change nothing but the "
    "unit of the learning rate (Bu et al. 2022)."
)

OWN_RATE = (
    "server.learning_rate is the config's own. Steps of SGD without normalise = true change with "
    "the clip norm: choose it again, or leave it out."
)


def check_target(path: Path) -> bool:
    """Return whether `path` is a former plan, which will be replaced.

    Raises:
        ConfigError: it is another file.
    """
    if not path.exists():
        return False
    if not path.is_file() or not path.read_bytes().startswith(_MARK.encode()):
        raise ConfigError(f"--out {path}: exists, and no plan wrote it; name another file")
    return True


def write_config(path: Path, config: Config, origin: str, sentences: Sequence[str]) -> None:
    """Write the recommended config, with `sentences` as comments above it.

    Raises:
        ConfigError: it cannot be written.
    """
    lines = [f"{_MARK} from {origin}."]
    for sentence in sentences:
        lines += [f"# {line}" for line in textwrap.wrap(sentence, 97)]
    with about(f"--out {path}: cannot be written: ", (OSError,)):
        write_atomically(path, "\n".join(lines) + "\n\n" + config.to_toml())
