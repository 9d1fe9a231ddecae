"""Group Privacy (Chua et al. 2024, Algorithm 1): example-level DP-SGD, priced for k records."""

from __future__ import annotations

from fedsim.config import Config
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.strategies.els import ExampleLevelSampling, ExampleStrategyConfig

_BLACK_BOX = "group-privacy"


class GroupPrivacy:
    """The plan of els, by the black-box accountant unless `privacy.accountant` is given.

    The algorithm is that of els: at most `group_size` = k records a user, pooled, coins on records,
    each record's gradient clipped. What differs is the price: ε₁ of one record becomes k ε₁
    (Vadhan 2017, Lemma 2.2), whatever the mechanism. The tight price of this mechanism, which the
    final version of the paper takes (App. B.3), is `accountant = "mixture"`: then it is els.

    A user with fewer than k records brings those; the paper's code repeats them up to k.
    """

    options = ExampleStrategyConfig

    @staticmethod
    def build(config: Config, materials: Materials) -> RoundPlan:
        """Return the plan.

        Raises:
            ConfigError: what els refuses.
        """
        chosen = config.privacy.accounted_by or _BLACK_BOX
        privacy = config.privacy
        if privacy.accountant is None:
            privacy = privacy.model_copy(update={"accountant": chosen})
        changed = config.model_copy(update={"privacy": privacy})
        return ExampleLevelSampling.build(changed, materials)
