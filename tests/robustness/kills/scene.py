"""Where a run lives while it is tortured, and what it is asked to do: small, but all of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.conftest import small_config

ROUNDS, CHECKPOINT_EVERY, KEPT = 12, 2, 2


@dataclass(frozen=True)
class Scene:
    """A run and all that it writes.

    Attributes:
        config: of the run.
        run: its folder.
        cache: its `FEDSIM_CACHE`, in which it builds its base model and its store.
    """

    config: Path
    run: Path
    cache: Path

    @property
    def arguments(self) -> list[str]:
        """What the command is given; the same whether the run begins or is taken up."""
        return ["run", str(self.config), "--out", str(self.run), "--resume"]

    @property
    def environment(self) -> dict[str, str]:
        """What the command's environment has on top."""
        return {"FEDSIM_CACHE": str(self.cache), "OMP_NUM_THREADS": "1"}


def write_config(path: Path, text: Path, noise: str) -> None:
    """Write the config of a few quick rounds on the text, with "seeded" or "secure" noise."""
    config = small_config(
        text,
        strategy={"rounds": ROUNDS},
        privacy={"noise": noise, "declared_num_users": 24},
        training={
            "evaluate_every": 2,
            "checkpoint_every": CHECKPOINT_EVERY,
            "keep_checkpoints": KEPT,
        },
    )
    path.write_text(config.to_toml(), encoding="utf-8")


def scene_in(folder: Path, config: Path) -> Scene:
    """Return a scene with an empty cache in a new folder; runs are all called alike."""
    folder.mkdir(parents=True)
    return Scene(config, folder / "run", folder / "cache")
