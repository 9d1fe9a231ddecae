"""Runs that are all known before the first of them begins, registered in the ledgers they share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsim.accounting.events import RoundCost
from fedsim.assembly import build_plan
from fedsim.config import Config
from fedsim.materials import default_device, load_materials
from fedsim.shared_account import SharedAccount, shared_account


def register_together(configs: Sequence[Config]) -> None:
    """Register what these runs will release, ledger by ledger.

    Nothing is done for a run without a ledger, or alone in one: it registers itself. A config
    whose plan cannot be built, or that its ledger refuses, is left out: its run says why. So is a
    secure run that counts its users when it begins.

    Args:
        configs: of runs of which none looks at another's outcome.
    """
    together: dict[Path, list[Config]] = {}
    for config in configs:
        if config.privacy.shared is not None:
            file = Path(config.privacy.shared.ledger).expanduser().resolve()
            together.setdefault(file, []).append(config)
    for sharing in together.values():
        if len(sharing) > 1:
            _register(sharing)


def _register(configs: Sequence[Config]) -> None:
    account: SharedAccount | None = None
    planned: list[tuple[RoundCost, int]] = []
    for config in configs:
        if not _known_beforehand(config):
            continue
        device = default_device(config.executor.gpus_per_worker)
        try:
            materials = load_materials(config.seed, config.data, config.model, device)
            plan = build_plan(config, materials)
            own = shared_account(config.privacy.shared, plan)
        except Exception:  # noqa: S112  (the run itself will say what is wrong; the others go on)
            continue
        if own is not None and (account is None or own.terms == account.terms):
            account = account or own
            planned.append((plan.cost, config.strategy.rounds))
    if account is not None:
        account.register(planned)


def _known_beforehand(config: Config) -> bool:
    """Whether a run's cost is known before its secret split is drawn.

    Where users or examples are held out at random and their number is not declared, a secure run
    counts who is left when it begins: it registers itself then.
    """
    privacy, data = config.privacy, config.data
    declared = privacy.declared_num_users is not None
    if config.strategy.batch_size is not None:
        declared = privacy.declared_num_examples is not None
    held_out = data.held_out_users > 0.0 or data.held_out_examples > 0.0
    return privacy.noise == "seeded" or declared or not held_out
