"""Which checkpoint a run goes on from: the newest that is whole, if the ledger covers them all."""

from __future__ import annotations

import logging
from pathlib import Path

from fedsim.accounting.ledger import Ledger
from fedsim.checkpoint import checkpoints_in, load_checkpoint, round_of
from fedsim.errors import ConfigError
from fedsim.state import ServerState

log = logging.getLogger("fedsim")


def newest_whole_state(folder: Path, charged: Ledger) -> ServerState | None:
    """Return the state of the newest checkpoint that can be read; None where there are none.

    A damaged one is passed over with a warning that names it, and is replaced when the run gets
    there again.

    Args:
        folder: of the checkpoints.
        charged: the ledger on disk. A checkpoint of n rounds, damaged or not, bears witness to n
            releases at least.

    Raises:
        ConfigError: checkpoints are there and none can be read, or the ledger has fewer releases
            than they bear witness to: to go on would lose charges.
    """
    found = checkpoints_in(folder)
    if found and charged.num_releases < round_of(found[-1]):
        raise ConfigError(
            f"--resume: {found[-1]} has {round_of(found[-1])} releases behind it and ledger.json "
            f"{charged.num_releases}: charges are missing; put the ledger back that belongs to it"
        )
    damage: list[ConfigError] = []
    for path in reversed(found):
        try:
            return load_checkpoint(path)
        except ConfigError as error:
            damage.append(error)
            log.warning("%s; looking for an earlier one", error)
    if damage:
        raise ConfigError(
            f"{damage[0]}; no other can be read: to begin at round 0 again, with all that was "
            f"charged staying charged, remove {folder}"
        )
    return None
