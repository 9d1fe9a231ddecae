"""Options of a study that trains: data file, ε, budgets, rounds and seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Context, Decimal
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.experiments.studies.common import trained
from fedsim.experiments.studies.common.output import check_folder
from fedsim.experiments.studies.common.trained import Trained, split_of

ON_A_FILE = ("data", "user_column", "text_column", "rounds", "seeds")
USER, TEXT = "user", "text"
SCORED = 4_000  # maximum number of users in evaluation, a large part of a short run


@dataclass(frozen=True)
class Options:
    """The command-line options of a study; by default the study's own values.

    Attributes:
        quick: whether to run a quick version.
        model: pre-trained model for adapters.
        data: file or folder of texts, instead of the built-in texts.
        user_column: column of the file with the user.
        text_column: column of the file with the text.
        epsilons: the compared ε.
        budgets: the compared budgets, in expected gradients per round.
        rounds: rounds of every run.
        seeds: number of repetitions of every line.

    Raises:
        ConfigError: a file does not exist, columns are given without a file, or a number is not
            above 0.
    """

    quick: bool = False
    model: str | None = None
    data: Path | None = None
    user_column: str = USER
    text_column: str = TEXT
    epsilons: tuple[float, ...] = ()
    budgets: tuple[float, ...] = ()
    rounds: int | None = None
    seeds: int | None = None

    def __post_init__(self) -> None:
        """Check all options before any work begins."""
        if self.data is None:
            for name, column, usual in (
                ("user", self.user_column, USER),
                ("text", self.text_column, TEXT),
            ):
                if column != usual:
                    raise ConfigError(f"--{name}-column {column}: needs a file; give --data, too")
        elif not self.data.exists():
            raise ConfigError(f"--data {self.data}: there is no such file")
        for option, values in (("epsilon", self.epsilons), ("budget", self.budgets)):
            for value in values:
                if not 0.0 < value < math.inf:
                    raise ConfigError(f"--{option} {value:g}: give a finite number above 0")

    @property
    def typed(self) -> str:
        """The options as shown on a page; files and folders without their path."""
        words = {
            "model": Path(self.model).name if self.model else "",
            "data": self.data.name if self.data else "",
            "user-column": self.user_column if self.user_column != USER else "",
            "text-column": self.text_column if self.text_column != TEXT else "",
            "epsilon": " ".join(f"{value:g}" for value in self.epsilons),
            "budget": " ".join(f"{value:g}" for value in self.budgets),
            "rounds": self.rounds,
            "seeds": self.seeds,
        }
        return "".join(f" --{name} {value}" for name, value in words.items() if value)

    @property
    def subjects(self) -> list[str]:
        """Model and file for a title, unless they are built in."""
        model = [f"adapters of {Path(self.model).name}"] if self.model else []
        return [*model, *([self.data.name] if self.data else [])]

    def base(self, *overrides: str) -> Config:
        """Return the base config of the study, with overrides `key.path=value`.

        A file's users are counted and declared; δ is a tenth of the inverse of their number,
        rounded down to one digit. Both are public in a study. With many users, only about `SCORED`
        have held-out examples, which are not trained on.

        Raises:
            ConfigError: a value is invalid, or a file cannot be read or lacks a column.
        """
        ends = ("strategy.rounds", "training.evaluate_every", "training.checkpoint_every")
        rounds = [] if self.rounds is None else [f"{key}={self.rounds}" for key in ends]
        given = (*self._texts(), *rounds, *overrides)
        if self.data is None:
            return trained.base(*given, model=self.model)
        users = self.num_users
        counted = (
            f"privacy.declared_num_users={users}",
            f"privacy.delta={small_delta(users):g}",
            f"data.held_out_from={min(1.0, SCORED / users):.2g}",
        )
        return trained.base(*counted, *given, model=self.model)

    @cached_property
    def num_users(self) -> int:
        """The number of training users."""
        config = trained.base("strategy.cohort_size=1", *self._texts(), model=self.model)
        return split_of(config).num_users

    @cached_property
    def user_sizes(self) -> npt.NDArray[np.int64]:
        """The number of training examples of each user, (users,)."""
        return split_of(self.base("strategy.cohort_size=1")).user_sizes

    def settings(self) -> list[str]:
        """Return sentences on a file's users and examples, and on the given number of rounds."""
        rounds = [] if self.rounds is None else [f"Every run has {self.rounds} rounds."]
        if self.data is None:
            return rounds
        sizes = self.user_sizes
        return [
            *rounds,
            f"Texts: `{self.data.name}`. {len(sizes):,} users have {sizes.sum():,} training "
            f"examples, the median user {np.median(sizes):g}, the largest {sizes.max():,}. The "
            "number of users counts as public.",
        ]

    def _texts(self) -> tuple[str, ...]:
        if self.data is None:
            return ()
        keys = {
            "source": str(self.data.resolve()),  # absolute: a resume may start in any folder
            "user_column": self.user_column,
            "text_column": self.text_column,
        }
        return tuple(
            f"data.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()
        )


def small_delta(num_users: int) -> float:
    """Return 1 / (10 · users), rounded down to one significant digit.

    Examples:
        >>> small_delta(898), small_delta(17_000), small_delta(100)
        (0.0001, 5e-06, 0.001)
    """
    one_digit = Context(prec=1, rounding=ROUND_DOWN)
    return float(one_digit.divide(Decimal(1), Decimal(10 * num_users)))


@dataclass(frozen=True)
class OnText:
    """A study with options, as registered under `fedsim.studies`; a call runs it.

    Attributes:
        make: function from options to the study.
        takes: names of its options.
    """

    make: Callable[[Options], Trained]
    takes: Collection[str]

    def __call__(
        self, out: Path, *, quick: bool, data: Sequence[Path] = (), **given: object
    ) -> None:
        """Run the study.

        Raises:
            ConfigError: an option is invalid, or `out` is not a folder for a study.
            RunsFailedError: a run failed; the results of the others are written.
        """
        if len(data) > 1:
            raise ConfigError(f"--data {data[1]}: a second file; this study accepts only one")
        file = data[0] if data else None
        options = Options(quick=quick, data=file, **given)  # type: ignore[arg-type]
        check_folder(out)
        study = self.make(options)
        whole = replace(
            study,
            title=": ".join([study.title, *options.subjects]),
            options=options.typed,
            settings=options.settings(),
            seeds=options.seeds or study.seeds,
            quick_seeds=options.seeds or study.quick_seeds,
        )
        whole(out, quick=quick)
