"""How many users there are and how many examples they have, by one noisy histogram.

Each training user adds a vector of two ones: one for being there, one in the bin of their number of
examples. Bins are public, 2^(1/4) apart. One user moves the vector by √2, so it is released as a
sum over all users with noise, at the price of a Gaussian mechanism that everybody is in.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedsim.accounting.accountants import choose, epsilon_of_composition
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.statement import PrivacyTerms
from fedsim.config import Config
from fedsim.data.store import Indices
from fedsim.errors import ConfigError
from fedsim.materials import Materials
from fedsim.noise.gaussian import release_
from fedsim.release_seed import release_seed
from fedsim.runner.shared_ledger import open_ledger
from fedsim.runner.summary import about_users
from fedsim.sampling import PoissonSampling
from fedsim.seeding import NoiseKey, noise_key, secret_noise_key
from fedsim.strategy import relation_of

QUANTILES = (0.25, 0.5, 0.75, 0.9)
_BINS = np.unique(np.floor(2.0 ** (np.arange(0, 81) / 4.0)))  # 1, 2, 3, 4, 5, …, 2^20
_SENSITIVITY = math.sqrt(2.0)


@dataclass(frozen=True)
class PrivateSizes:
    """Answers.

    Attributes:
        users: training users, not whole; may be below 0.
        users_stddev: of its noise.
        quantiles: (quantile, examples): no more than that share of users have fewer, by the noisy
            histogram; the ends of bins, 19 % apart where they are large.
        shares_stddev: of each quantile: how far off the share of users up to there may be. The
            noise of all bins below adds up.
        terms: ε of this release by itself, with everything that it is said with.
        assumptions: what it rests on.
    """

    users: float
    users_stddev: float
    quantiles: Sequence[tuple[float, int]]
    shares_stddev: Sequence[float]
    terms: PrivacyTerms
    assumptions: Sequence[str]


def private_sizes(config: Config, materials: Materials, noise_multiplier: float) -> PrivateSizes:
    """Ask, and charge the ledger that the config's runs share, if there is one, before.

    Raises:
        ConfigError: no δ, texts with several owners, or a ledger that cannot be read.
        BudgetSpentError: the ledger does not pay for it.
    """
    delta = config.privacy.delta
    if delta is None:
        raise ConfigError("privacy.delta: missing; a guarantee needs it, such as delta = 1e-5")
    if config.data.co_owned:
        raise ConfigError("data.owners_column: sizes are of texts with one owner each")
    cost = RoundCost(PoissonSampling(1.0), noise_multiplier)
    accountant, relation = choose([cost], None, relation_of(config))
    secure = config.privacy.noise == "secure"
    seed = release_seed(config, materials, "sizes", noise_multiplier)
    key = secret_noise_key() if secure else noise_key(seed, "planning", 0)
    if config.privacy.shared is not None:
        account = open_ledger(config.privacy.shared, relation)
        hashed = hashlib.sha256(f"fedsim/sizes/{seed}".encode()).hexdigest()[:32]
        account.charge(0, cost, f"{config.privacy.noise}:{hashed}", 1, own=Ledger())
    histogram = _released(materials.split.user_sizes, noise_multiplier, key)
    users, stddev = float(histogram[0]), noise_multiplier * _SENSITIVITY
    quantiles = _quantiles(histogram)
    return PrivateSizes(
        users=users,
        users_stddev=stddev,
        quantiles=quantiles,
        shares_stddev=[
            stddev * math.sqrt(np.searchsorted(_BINS, size) + 1 + q**2) / max(users, 1.0)
            for q, size in quantiles
        ],
        terms=PrivacyTerms.of(
            cost,
            "users",
            rounds=1,
            delta=delta,
            epsilon=epsilon_of_composition([(cost, 1)], delta, accountant.name, relation),
            relation=relation,
            noise=config.privacy.noise,
            unit=config.data.unit,
        ),
        assumptions=about_users(config, materials),
    )


def _released(sizes: Indices, noise_multiplier: float, key: NoiseKey) -> npt.NDArray[np.float64]:
    """Return (1 + bins,): the noisy number of users, and that in each bin."""
    bins = np.searchsorted(_BINS, sizes[sizes > 0], side="right") - 1
    counts = np.bincount(bins, minlength=len(_BINS)).astype(np.float64)
    total = {"sizes": torch.from_numpy(np.append(counts.sum(), counts))}
    released, _ = release_(total, 1.0, noise_multiplier * _SENSITIVITY, key)
    return np.asarray(released["sizes"].numpy())


def _quantiles(histogram: npt.NDArray[np.float64]) -> list[tuple[float, int]]:
    """Return the first bin up to which there are as many users as a quantile asks for."""
    up_to = np.maximum.accumulate(np.cumsum(histogram[1:]))
    places = np.searchsorted(up_to, np.array(QUANTILES) * histogram[0])
    return [
        (q, int(_BINS[min(at, len(_BINS) - 1)]))
        for q, at in zip(QUANTILES, places.tolist(), strict=True)
    ]
