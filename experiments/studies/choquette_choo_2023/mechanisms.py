"""Choquette-Choo et al. 2023, arXiv:2306.08153: samplers and correlated noise at one promise.

56 rounds, so that balanced sampling (2 and 8 passes) and BLT (28 and 7 whole groups) have the very
cohorts of the others. Cyclic sampling has four groups, without and with four bands. Every line has
the same learning rate, seeds and expected gradients.

The paper finds amplified banded noise at least as good at every ε as the better of independent
noise with amplification and correlated noise without it (CIFAR-10 and Stack Overflow).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, base, cell
from fedsim.report.grid_result import GridResult
from fedsim.sweep.cells import Cell

USERS, ROUNDS = 898, 56
EPSILONS = (1, 4, 16)
PASSES = {32: 2, 128: 8}  # of balanced sampling, which then has that cohort
QUICK_COHORT = 8


def _ways(cohort: int, quick: bool) -> dict[str, tuple[str, ...]]:
    """Return the keys of each way for a cohort of about that many users."""
    if quick:
        groups = ("strategy.sampling.kind=cyclic", "strategy.sampling.groups=2")
        size = f"strategy.cohort_size={cohort}"
        return {"Poisson": (size,), "2 bands": (size, *groups, "privacy.mechanism=banded")}
    passes = PASSES[cohort]
    size = f"strategy.cohort_size={USERS * passes / ROUNDS}"
    cyclic = "strategy.sampling.kind=cyclic"
    return {
        "Poisson": (size,),
        "balanced": (
            "strategy.sampling.kind=balanced",
            f"strategy.sampling.participations={passes}",
        ),
        "cyclic": (size, cyclic, "strategy.sampling.groups=4"),
        "4 bands": (size, cyclic, "strategy.sampling.groups=4", "privacy.mechanism=banded"),
        "BLT": (
            cyclic,
            f"strategy.sampling.groups={ROUNDS // passes}",
            "privacy.mechanism=blt",
        ),
    }


def grid(quick: bool) -> Iterator[Cell]:
    """Yield ULS with each sampler and matrix, at each ε and cohort."""
    cohorts = [QUICK_COHORT] if quick else list(PASSES)
    for epsilon, cohort in product(EPSILONS[-1:] if quick else EPSILONS, cohorts):
        for way, keys in _ways(cohort, quick).items():
            common = (f"privacy.epsilon={epsilon}", f"strategy.rounds={ROUNDS}", *keys)
            ends = (f"training.{key}_every={ROUNDS}" for key in ("evaluate", "checkpoint"))
            settings = {"epsilon": epsilon, "cohort": cohort, "mechanism": way}
            yield cell("uls", settings, base(*common, *ends), quick)


def notes(result: GridResult) -> Sequence[str]:
    """Return each way's loss against Poisson's, seed by seed."""
    lines = {tuple(line.settings.values()): line for line in result.lines}
    said = []
    for (epsilon, cohort, way), line in lines.items():
        if way != "Poisson":
            other = lines[epsilon, cohort, "Poisson"]
            gaps = [a - b for a, b in zip(line.losses, other.losses, strict=True)]
            mean = sum(gaps) / len(gaps)
            said.append(
                f"ε = {epsilon}, cohort {cohort}: {way} is {abs(mean):.4f} nats "
                f"{'behind' if mean > 0 else 'in front of'} Poisson, seed by seed from "
                f"{min(gaps):+.4f} to {max(gaps):+.4f}."
            )
    return said


run = Trained(
    name="mechanisms",
    title="Samplers and correlated noise at one promise",
    explanation=__doc__,
    cells=grid,
    draw=picture("mechanism", "epsilon", "cohort", "Held-out loss: samplers and correlated noise"),
    notes=notes,
    seeds=2,
)
