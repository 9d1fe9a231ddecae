"""Choquette-Choo et al. 2023, arXiv:2306.08153: samplers and correlated noise at equal ε.

Runs have 56 rounds, and cohorts of about 32 and 128 users that give whole passes: 2 and 8 on the
898 speakers. So balanced sampling and BLT (28 and 7 whole groups) have the same cohort sizes as the
others. For a file (`--data`) with many users, the minimum is one pass. Cyclic sampling has four
groups, without and with four bands. All lines have the same learning rate, seeds and expected
gradients.

The paper finds that banded noise with amplification is at every ε at least as good as independent
noise with amplification and as correlated noise without it (CIFAR-10 and Stack Overflow).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from fedsim.experiments.studies.common.options import ON_A_FILE, OnText, Options
from fedsim.experiments.studies.common.series import picture
from fedsim.experiments.studies.common.trained import Trained, cell
from fedsim.planner.budget import passes
from fedsim.report.grid_result import GridResult
from fedsim.sweep.cells import Cell

ROUNDS, EPSILONS, COHORTS = 56, (1, 4, 16), (32, 128)
QUICK_COHORT = 8


def _ways(users: int, passes: int, rounds: int) -> dict[str, tuple[str, ...]]:
    """Return the config keys of each way with `passes` mean participations of each user."""
    size = f"strategy.cohort_size={users * passes / rounds}"
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
            f"strategy.sampling.groups={rounds // passes}",
            "privacy.mechanism=blt",
        ),
    }


def _quick_ways() -> dict[str, tuple[str, ...]]:
    groups = ("strategy.sampling.kind=cyclic", "strategy.sampling.groups=2")
    size = f"strategy.cohort_size={QUICK_COHORT}"
    return {"Poisson": (size,), "2 bands": (size, *groups, "privacy.mechanism=banded")}


def ways(quick: bool, options: Options) -> dict[int, dict[str, tuple[str, ...]]]:
    """Return the config keys of each way, by cohort size."""
    if quick:
        return {QUICK_COHORT: _quick_ways()}
    users, rounds = options.num_users, options.rounds or ROUNDS
    least = sorted({passes(rounds, cohort / users) for cohort in COHORTS})
    return {round(users * count / rounds): _ways(users, count, rounds) for count in least}


def grid(quick: bool, options: Options) -> Iterator[Cell]:
    """Yield ULS with each sampler and matrix, at each ε and cohort."""
    rounds = options.rounds or ROUNDS
    ends = (f"training.{key}_every={rounds}" for key in ("evaluate", "checkpoint"))
    common = (f"strategy.rounds={rounds}", *ends)
    epsilons = options.epsilons or (EPSILONS[-1:] if quick else EPSILONS)
    for epsilon, (cohort, kinds) in product(epsilons, ways(quick, options).items()):
        for way, keys in kinds.items():
            config = options.base(f"privacy.epsilon={epsilon}", *common, *keys)
            settings = {"epsilon": f"{epsilon:g}", "cohort": cohort, "mechanism": way}
            yield cell("uls", settings, config, quick)


def notes(result: GridResult) -> Sequence[str]:
    """Return sentences that compare each way's loss with Poisson's, seed by seed."""
    lines = {tuple(line.settings.values()): line for line in result.lines}
    sentences = []
    for (epsilon, cohort, way), line in lines.items():
        if way != "Poisson":
            other = lines[epsilon, cohort, "Poisson"]
            gaps = [a - b for a, b in zip(line.losses, other.losses, strict=True)]
            mean = sum(gaps) / len(gaps)
            sentences.append(
                f"ε = {epsilon}, cohort {cohort}: the mean loss of {way} is {abs(mean):.4f} nats "
                f"{'above' if mean > 0 else 'below'} that of Poisson sampling (by seed: "
                f"{min(gaps):+.4f} to {max(gaps):+.4f})."
            )
    return sentences


def study(options: Options) -> Trained:
    """Return the study of the built-in texts, or of a file."""
    return Trained(
        name="mechanisms",
        title="Samplers and correlated noise at equal ε",
        explanation=__doc__,
        cells=partial(grid, options=options),
        draw=picture(
            "mechanism", "epsilon", "cohort", "Held-out loss: samplers and correlated noise"
        ),
        notes=notes,
        seeds=2,
    )


run = OnText(study, takes=("epsilons", *ON_A_FILE))
