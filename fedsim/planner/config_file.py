"""Write the planned config: TOML for `fedsim run`, with the reasons as comments."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from fedsim.config import Config
from fedsim.errors import ConfigError, about
from fedsim.utils.files import write_atomically

_MARK = "# Planned by `fedsim plan`"

_CLIP_NORM = (
    "The clip norm is the median norm of users' updates at the starting model, as Charles et al. "
    "2024 choose it (App. I), not the largest: about half of the updates are clipped at first."
)
_GROWS = " Without normalise = true SGD's steps grow with it: choose the learning rate anew."


def about_clip_norm(config: Config) -> str:
    """Return the sentences on the choice of the clip norm, and on an SGD learning rate."""
    return _CLIP_NORM + (_GROWS if config.server.optimizer == "sgd" else "")


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
