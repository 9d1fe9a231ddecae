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
    "The clip norm is a quarter of the median norm of updates at the starting model. So nearly all "
    "updates are clipped and have equal weight; a smaller norm would only change the scale of the "
    "learning rate (Bu et al. 2022)."
)

OWN_RATE = (
    "server.learning_rate comes from the config. SGD's steps depend on the clip norm unless "
    "normalise = true: choose the rate again, or leave it out."
)


def check_target(path: Path) -> bool:
    """Return whether `path` is an earlier plan, which will be replaced.

    Raises:
        ConfigError: `path` is another file.
    """
    if not path.exists():
        return False
    if not path.is_file() or not path.read_bytes().startswith(_MARK.encode()):
        raise ConfigError(f"--out {path}: exists, but is not a plan; name another file")
    return True


def write_config(path: Path, config: Config, origin: str, sentences: Sequence[str]) -> None:
    """Write the recommended config, with `sentences` as comments above it.

    Raises:
        ConfigError: the file cannot be written.
    """
    lines = [f"{_MARK} from {origin}."]
    for sentence in sentences:
        lines += [f"# {line}" for line in textwrap.wrap(sentence, 97)]
    with about(f"--out {path}: cannot be written: ", (OSError,)):
        write_atomically(path, "\n".join(lines) + "\n\n" + config.to_toml())
