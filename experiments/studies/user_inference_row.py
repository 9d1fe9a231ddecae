"""One line of the study of user inference: a run that was attacked, and what the attack found."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.studies.user_inference_runs import Case
from fedsim.attacks.schema import AttackReport, Group, Measured
from fedsim.report.wording import epsilon_text

SAMPLES = (1, 2, 4, 8)  # of a user, that the attack is given


@dataclass(frozen=True)
class Row:
    """A run that was attacked, and the held-out loss it began with."""

    case: Case
    report: AttackReport
    initial_loss: float

    @property
    def group(self) -> Group:
        """The canaries where there are any, else the real users."""
        return self.report.groups[-1]

    def measured(self, statistic: str = "mean", samples: int = max(SAMPLES)) -> Measured:
        """Return one of the attack's results."""
        return next(
            row
            for row in self.group.measured
            if (row.statistic, row.samples) == (statistic, samples)
        )

    @property
    def promise(self) -> str:
        """The ε of a user that the run's report states, or that there is none."""
        epsilon = self.report.privacy.epsilon
        return "none" if epsilon is None else epsilon_text(epsilon)
