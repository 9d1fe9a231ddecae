"""Runs of the user-inference study, and their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.config import Config, parse_config
from fedsim.data.sources.shakespeare import private_speeches
from fedsim.experiments.studies.common.runs import written
from fedsim.materials import load_materials
from fedsim.report.attack_report import AttackReport, Group, Measured
from fedsim.report.wording import epsilon_text
from fedsim.sampling import PoissonSampling

SAMPLES = (1, 2, 4, 8)  # numbers of a user's texts for the attack


@dataclass(frozen=True)
class Row:
    """The attack on a run, and the run's held-out loss before training."""

    case: Case
    report: AttackReport
    initial_loss: float

    @property
    def group(self) -> Group:
        """The canaries if there are any, else the real users."""
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
        """The report's ε for a user, or a text that there is none."""
        epsilon = self.report.privacy.epsilon
        return "none" if epsilon is None else epsilon_text(epsilon)


DELTA = 1e-3  # for about a hundred users
EXAMPLE_DELTA = 1e-4  # for examples
NOTHING_CLIPPED = 1e6
REPEATED = 3  # every third text of a user appears twice
SHORTEST = 60  # minimum characters of a speech


@dataclass(frozen=True)
class Scale:
    """Size of the study.

    Attributes:
        rounds: rounds of every run.
        learning_rate: learning rate of Adam, for runs without noise.
        texts: number of texts per user.
        users: maximum number of speakers; None for all with enough texts.
        limits: maximum examples per user, one run each.
        epsilons: ε for users.
        lengths: numbers of shared tokens of a canary's examples.
        num_canaries: number of planted users.
        full: whether to run all mitigations, or one of each kind.
    """

    rounds: int
    learning_rate: float
    texts: int
    users: int | None
    limits: tuple[int, ...]
    epsilons: tuple[float, ...]
    lengths: tuple[int, ...]
    num_canaries: int
    full: bool


FULL = Scale(100, 0.002, 20, None, (6, 2), (8.0, 2.0), (1, 4, 16), 60, full=True)
QUICK = Scale(9, 0.004, 20, 60, (2,), (8.0,), (4,), 20, full=False)
BATCH_SIZE = 32
CLIP = 0.4  # below almost all gradient norms, of examples and of batch means


@dataclass(frozen=True)
class Case:
    """A run, with the name of its row, the kind of mitigation, and the config."""

    name: str
    kind: str
    config: Config


def cases(scale: Scale, folder: Path) -> Iterator[Case]:
    """Yield the runs, the unprotected one first; `folder` receives the texts."""
    plain = _Recipe(
        scale, write_texts(folder / "texts.jsonl", scale.texts, scale.users, repeated=False)
    )
    yield Case("non-private", "none", plain.config())
    early = scale.rounds // 3
    yield Case(f"stopped after {early} rounds", "early", plain.config(strategy={"rounds": early}))
    repeated = write_texts(folder / "repeated.jsonl", scale.texts, scale.users, repeated=True)
    yield Case("repeated texts", "repetition", replace(plain, source=repeated).same_passes())
    for limit in scale.limits:
        yield Case(f"at most {limit} examples a user", "limit", plain.limited(limit))
    if scale.full:
        clipped = {"max_gradient_norm": CLIP}
        yield Case("batch clipping", "clipping", plain.config(server=clipped))
        yield Case("per-example clipping", "clipping", plain.per_example(clip=CLIP))
        yield Case("example-level DP, ε = 8", "example-level", plain.example_level(8.0))
    for epsilon in scale.epsilons:
        yield Case(f"ULS, ε = {epsilon:g}", "user-level", plain.uls(epsilon))
        if scale.full:
            yield Case(f"ELS, ε = {epsilon:g}", "user-level", plain.els(epsilon))
    for length in scale.lengths:
        planted = replace(plain, canaries=length)
        yield Case(f"canaries, l = {length}", "canaries", planted.config())
    planted = replace(plain, canaries=max(scale.lengths))
    for epsilon in scale.epsilons:
        name = f"canaries, l = {planted.canaries}, ULS, ε = {epsilon:g}"
        yield Case(name, "protected canaries", planted.uls(epsilon))


@dataclass(frozen=True)
class _Recipe:
    """Configs that differ from the unprotected run only in the given sections."""

    scale: Scale
    source: Path
    canaries: int = 0

    def config(self, **sections: Mapping[str, Any]) -> Config:
        raw: dict[str, Any] = {
            "seed": 1,
            "data": self._data(),
            "strategy": {
                "name": "non-private",
                "rounds": self.scale.rounds,
                "batch_size": BATCH_SIZE,
            },
            "server": {"optimizer": "adam", "learning_rate": self.scale.learning_rate},
            "training": {
                "evaluate_every": self.scale.rounds,
                "checkpoint_every": max(1, self.scale.rounds // 6),
                "keep_checkpoints": 6,
            },
        }
        for name, section in sections.items():
            raw[name] = {**raw.get(name, {}), **section}
        return parse_config(raw)

    def _data(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "source": str(self.source),
            "cutting": "truncate",
            "sequence_length": 32,
            "held_out_examples": 0.4,
            "held_out_users": 0.5,
        }
        if self.canaries:
            data["canaries"] = {
                "num_users": self.scale.num_canaries,
                "num_examples": self.scale.texts,
                "shared_tokens": self.canaries,
            }
        return data

    def same_passes(self, **sections: Mapping[str, Any]) -> Config:
        """Return a run with another number of examples and the same number of passes."""
        size = self._rate * int(_user_sizes(self.config()).sum())
        return self.config(strategy={"batch_size": size}, **sections)

    def per_example(self, clip: float, group_size: int | None = None) -> Config:
        """Return ELS without noise, with the same number of passes over its examples."""
        size = self.scale.texts if group_size is None else group_size
        return self.config(
            strategy={
                "name": "els",
                "batch_size": self._rate * self._pool(size),
                "group_size": size,
                "clip": {"l2_clip_norm": clip},
            },
            privacy={"noise_multiplier": 0.0, "delta": DELTA},
        )

    def limited(self, limit: int) -> Config:
        return self.per_example(NOTHING_CLIPPED, limit)

    def example_level(self, epsilon: float) -> Config:
        """Return ELS with the noise that protects one example: large batches, few rounds."""
        rate, rounds = 1 / 6, max(1, self.scale.rounds // 5)
        noise = calibrate_noise_multiplier(
            sampling=PoissonSampling(rate),
            units_per_user=1,
            rounds=rounds,
            epsilon=epsilon,
            delta=EXAMPLE_DELTA,
        )
        size = self.scale.texts
        return self._noisy(
            {"name": "els", "batch_size": rate * self._pool(size), "group_size": size},
            {"noise_multiplier": noise},
            rounds,
            0.1,
        )

    def uls(self, epsilon: float) -> Config:
        cohort = 0.5 * len(_user_sizes(self.config()))
        strategy = {"name": "uls", "cohort_size": cohort, "group_size": 4, "batch_size": None}
        return self._noisy(strategy, {"epsilon": epsilon}, max(1, self.scale.rounds // 10), 0.05)

    def els(self, epsilon: float) -> Config:
        strategy = {"name": "els", "batch_size": 0.5 * self._pool(4), "group_size": 4}
        return self._noisy(strategy, {"epsilon": epsilon}, max(1, self.scale.rounds // 10), 0.05)

    def _noisy(
        self,
        strategy: Mapping[str, Any],
        privacy: Mapping[str, Any],
        rounds: int,
        learning_rate: float,
    ) -> Config:
        """Return a run with noise: few rounds, and SGD, as Adam would divide by the noise."""
        users = len(_user_sizes(self.config()))
        clip = {"l2_clip_norm": CLIP, "normalise": True}
        return self.config(
            strategy={**strategy, "rounds": rounds, "clip": clip},
            privacy={**privacy, "delta": DELTA, "declared_num_users": users},
            server={"optimizer": "sgd", "learning_rate": learning_rate},
        )

    def _pool(self, group_size: int) -> int:
        return int(np.minimum(_user_sizes(self.config()), group_size).sum())

    @property
    def _rate(self) -> float:
        """Share of the examples in a round of the unprotected run."""
        plain = replace(self, source=self.source.with_name("texts.jsonl"))
        return BATCH_SIZE / float(_user_sizes(plain.config()).sum())


@lru_cache(maxsize=4)
def _user_sizes(config: Config) -> Any:  # noqa: ANN401  (an int64 array)
    """Return the number of training examples of each trained user."""
    return load_materials(config.seed, config.data, config.model, "cpu").split.user_sizes


def write_texts(path: Path, texts: int, users: int | None, *, repeated: bool) -> Path:
    """Write a JSONL file with `texts` speeches of each speaker who has enough.

    Each text begins with the speaker's name, as printed in the plays. So all texts of a user have a
    common part, like an e-mail signature.

    Args:
        path: path of the file.
        texts: number of different speeches of a speaker, the first ones that are not short.
        users: maximum number of speakers; None for all.
        repeated: whether every third text is written twice.
    """
    speeches: dict[str, list[str]] = {}
    for user, speech in private_speeches():
        known = speeches.setdefault(user, [])
        if len(speech) >= SHORTEST and speech not in known and len(known) < texts:
            known.append(speech)
    rows = []
    enough = [user for user, known in speeches.items() if len(known) == texts]
    for user in enough[:users]:
        name = user.partition("/")[2].title()
        for place, speech in enumerate(speeches[user]):
            row = {"speaker": user, "text": f"{name}. {speech}"}
            copies = 2 if repeated and place % REPEATED == REPEATED - 1 else 1
            rows += [row] * copies
    return written(path, rows)
