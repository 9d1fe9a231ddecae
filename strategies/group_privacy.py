"""Group Privacy (Chua et al. 2024, Algorithm 1): example-level DP-SGD, priced for k records."""

from __future__ import annotations

from fedsim.config import Config
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.strategies.els import ExampleLevelSampling, ExampleStrategyConfig

_BLACK_BOX = "group-privacy"


class GroupPrivacy:
    """The plan of els, priced by the black-box accountant unless `privacy.accountant` is set.

    The algorithm is that of els: pool at most `group_size` = k records per user, sample records,
    and clip the gradient of each. Only the price differs: ε₁ of one record becomes k ε₁ (Vadhan
    2017, Lemma 2.2), for any mechanism. `accountant = "mixture"` gives the tight price, as in the
    final version of the paper (App. B.3); the strategy is then the same as els.

    A user with fewer than k records contributes all of them; the paper's code repeats them up to k.
    """

    options = ExampleStrategyConfig

    @staticmethod
    def build(config: Config, materials: Materials) -> RoundPlan:
        """Return the plan.

        Raises:
            ConfigError: els refuses the config.
        """
        chosen = config.privacy.accounted_by or _BLACK_BOX
        privacy = config.privacy
        if privacy.accountant is None:
            privacy = privacy.model_copy(update={"accountant": chosen})
        changed = config.model_copy(update={"privacy": privacy})
        return ExampleLevelSampling.build(changed, materials)
