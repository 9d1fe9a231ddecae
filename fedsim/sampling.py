"""Samplers and neighbouring relations. One value both draws a cohort and states its event.

Every sampler is accounted exactly as it is drawn, except `shuffled`:

| sampler | cohort size | accounted as | relation |
|---|---|---|---|
| Poisson | Binomial | Poisson | all four |
| truncated Poisson | Binomial, cut to a cap | truncated Poisson | user relations |
| fixed size | constant | sampling without replacement (RDP) | replace-one |
| balanced | Binomial, each unit once a pass | random allocation, whole run | all but replace-one |
| cyclic | Binomial, one group in turn | one Poisson round per turn, whole run | user relations |
| shuffled | constant | Poisson, not the real law: no guarantee | as Poisson |

To add a sampler, register a subclass of `Sampling` under the entry-point group `fedsim.samplers`
(`docs/how-to/own-parts.md`). "User relations" are the first three of `Relation`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt
import scipy  # its parts load when they are used
from pydantic import Field

from fedsim.config.schema import SamplingConfig
from fedsim.errors import ConfigError, about
from fedsim.seeding import Coins, Uniforms
from fedsim.utils.section import MOST

if TYPE_CHECKING:  # functions import it themselves: workers do not need it
    import dp_accounting

Indices = npt.NDArray[np.int64]


class Relation(Enum):
    """The meaning of "two data sets differ by one user".

    | relation | the neighbour | what is not hidden |
    |---|---|---|
    | add-or-remove-one | has one user more or fewer | nothing about a user |
    | zero-out-one | has the same users, one of whom contributes zeros | the number of users |
    | replace-one | has one user's data replaced by any other | the number of users |
    | fixed-graph | has every text that one owner co-owns blank | who owns which text |

    fixed-graph is for texts with several owners; it protects every owner of any text (Ganesh et al.
    2025, arXiv:2503.03622). Replacing is removing and adding, so replace-one is the strongest of
    the other relations, and has the largest ε at the same noise.
    A noise multiplier is always the noise over the amount that *one user can add*. Replacing moves
    the sum by twice that amount; the accountant includes this factor.
    """

    ADD_OR_REMOVE = "add-or-remove-one"
    ZERO_OUT = "zero-out-one"
    REPLACE = "replace-one"
    FIXED_GRAPH = "fixed-graph"

    @property
    def phrase(self) -> str:
        """The relation in words, for reports and statements.

        Examples:
            >>> Relation.ADD_OR_REMOVE.phrase
            'add-or-remove-one user'
        """
        if self is Relation.FIXED_GRAPH:
            return (
                "fixed-graph (the neighbour has the same texts and owners, but every text that one "
                "owner co-owns is blank; who owns which text is public)"
            )
        return f"{self.value} user"

    @property
    def unit(self) -> str:
        """The protected party, "owner" or "user"."""
        return "owner" if self is Relation.FIXED_GRAPH else "user"

    @property
    def of_dp_accounting(self) -> dp_accounting.NeighboringRelation:
        """The same relation in dp_accounting's terms."""
        import dp_accounting  # noqa: PLC0415

        return {
            Relation.ADD_OR_REMOVE: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
            Relation.ZERO_OUT: dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
            Relation.REPLACE: dp_accounting.NeighboringRelation.REPLACE_ONE,
            Relation.FIXED_GRAPH: dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
        }[self]


class Sampling(ABC):
    """A sampler: draws the units of a round and states the privacy event of that draw.

    A subclass is a frozen dataclass whose fields are numbers; ledgers store them. Its entry point
    in `fedsim.samplers` is named `kind`.

    The ε relies on these formal guarantees:

    - `draw` follows the distribution that `event` prices, for every population that it accepts. It
      depends only on `coins`, the round and the number of units, never on data.
    - The presence of one unit does not change the draw of another, unless `displaces` is true.
    - `event(z, k)` dominates a round in which one user owns at most k units, each unit adds at most
      1 to the sum, and noise of standard deviation z is added. With `run_rounds`, `events` such
      events dominate the whole run.
    - `probability` is the probability of a unit in a round; the denominator uses it.
    """

    kind: ClassVar[str]
    options: ClassVar[type[SamplingConfig]] = SamplingConfig
    guaranteed: ClassVar[bool] = True
    """Whether `event` describes `draw`. If not, the ε is hypothetical."""
    hides_size: ClassVar[bool] = True
    """Whether the number of units may stay private.

    The default relation is add-or-remove-one if true, replace-one if false.
    """
    displaces: ClassVar[bool] = False
    """Whether adding a unit can push another unit out of the cohort, in the accounted mechanism."""
    accountant: ClassVar[str | None] = None
    """Default accountant; None for PLD."""
    sums_alone: ClassVar[bool] = False
    """Whether rounds release only noisy sums that each unit joins with the probability of `coins`.
    A bound on total variation then spares the accountant some work."""
    probability: float

    @property
    def run_rounds(self) -> int | None:
        """Number of rounds that share one price, all or none; None if each round has its own.

        A sampler with one price also reads the coins of earlier rounds, so a round can be repeated.
        """
        return None

    @property
    def events(self) -> int:
        """How often `event` is composed: for one round, or for all `run_rounds` rounds."""
        return 1

    def coins_met(self, rounds: int) -> tuple[float, int]:
        """Return the rate of a unit's coins and their number in `rounds` rounds."""
        whole = self.run_rounds
        return self.probability, rounds if whole is None else -(-rounds // whole) * whole

    def in_words(self, noun: str) -> str:
        """Return the name of this sampling in reports; `noun` is "users" or "examples"."""
        return f"{self.kind} sampling of {noun}"

    def chance_in_words(self, noun: str) -> str:
        """Return the words on the probability of a unit, which reports append to `in_words`."""
        return f" with probability {self.probability:g}"

    @classmethod
    def build(cls, options: Any, wanted: Wanted) -> Sampling:  # noqa: ANN401  (a subclass's own)
        """Return the sampler of a config.

        Args:
            options: the table `strategy.sampling`, an instance of `cls.options`.
            wanted: cohort size, population and rounds from the rest of the config.

        Raises:
            ConfigError: `options` and `wanted` do not fit together.
        """
        raise NotImplementedError

    @abstractmethod
    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the indices of the units drawn in a round, ascending; may be empty.

        Args:
            num_units: number of units in the pool.
            round: the round, from 0.
            coins: uniforms of a round, one for each unit. A seeded unit's uniform does not depend
                on other units, so compare each with a threshold, or take the smallest.

        Raises:
            ValueError: the accounting does not cover `num_units`.
        """

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return the event of one round, for a user who owns at most `units_per_user` units.

        A run with one price costs `events` such events. Return `UnsupportedDpEvent` if only the
        sampler's own accountant has a price. The default, `NonPrivateDpEvent`, gives no ε.

        Args:
            noise_multiplier: noise standard deviation over the bound of one unit, > 0.
            units_per_user: 1 in ULS, the group size in ELS.

        Raises:
            ValueError: no proved cost is known.
        """
        import dp_accounting  # noqa: PLC0415

        return dp_accounting.NonPrivateDpEvent()


@dataclass(frozen=True)
class Wanted:
    """Cohort size, population and rounds for which a sampler is built.

    Attributes:
        expected: units per round, on average or exactly; None if the config omits it.
        population: public number of units.
        counted: true number of units.
        rounds: number of rounds of the run.
        field: config key of `expected`, for messages.
        noun: "users" or "examples", for messages.
    """

    expected: float | None
    population: int
    counted: int
    rounds: int
    field: str
    noun: str

    @property
    def rate(self) -> float:
        """The expected share of the population; a `ConfigError` if it is missing or over 1."""
        if self.expected is None:
            raise ConfigError(
                f"{self.field}: missing; give the expected number of {self.noun} a round"
            )
        if self.expected > self.population:
            raise ConfigError(
                f"{self.field} = {self.expected:g}: larger than the population of "
                f"{self.population} {self.noun}; give at most {self.population}"
            )
        return self.expected / self.population

    def refuse_population(self, kind: str) -> NoReturn:
        """Raise the `ConfigError` for a price that assumes a wrong population."""
        raise ConfigError(
            f"strategy.sampling.kind = {kind!r}: the price assumes a population of "
            f"{self.population}, but there are {self.counted} {self.noun}; declare the true "
            'number, or take kind = "poisson"'
        )


class TruncatedPoissonConfig(SamplingConfig):
    """Poisson sampling with cohorts cut to a cap."""

    max_cohort_size: Annotated[int, Field(ge=1, le=MOST)]
    """Maximum number of units of a round; if more are drawn, a random subset of this size stays."""


class BalancedConfig(SamplingConfig):
    """Every user takes part once in each pass over the users."""

    participations: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Number of rounds of each user; by default computed from `cohort_size`."""


class CyclicConfig(SamplingConfig):
    """Groups of users take turns."""

    groups: Annotated[int, Field(ge=1, le=MOST)]
    """Number of groups."""


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Every unit flips its own coin: the cohort's size is Binomial(num_units, probability).

    The amplification theorems assume this sampling (Charles et al. 2024, Algorithms 1 and 2;
    McMahan et al. 2018, §2 A).

    Attributes:
        probability: in (0, 1]; 1 takes every unit every round.
    """

    probability: float
    kind: ClassVar[str] = "poisson"
    sums_alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_probability("sampling_probability", self.probability)

    @classmethod
    def build(cls, options: SamplingConfig, wanted: Wanted) -> Sampling:
        """Return the sampler whose probability is the expected rate."""
        return cls(wanted.rate)

    def in_words(self, noun: str) -> str:
        """Return the sampling in words."""
        return f"Poisson sampling of {noun}"

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the units whose uniform is below `probability`."""
        return _poisson(coins.of_units(round), self.probability)

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return the Poisson-sampled Gaussian; for several units per user, a mixture."""
        return _poisson_event(self.probability, noise_multiplier, units_per_user)


@dataclass(frozen=True)
class TruncatedPoissonSampling(Sampling):
    """Poisson sampling that cuts a cohort above `max_units` to a uniform subset of that size.

    This bounds the memory and time of a round. A user can now displace another, so the price is
    above Poisson's, and depends on how often the cap is reached (arXiv:2508.15089).

    Attributes:
        probability: probability of a unit's coin, in (0, 1].
        max_units: cap on the cohort, >= 1.
        population: public upper bound on the number of units; the price depends on it.
    """

    probability: float
    max_units: int
    population: int
    kind: ClassVar[str] = "truncated-poisson"
    options: ClassVar[type[SamplingConfig]] = TruncatedPoissonConfig
    sums_alone: ClassVar[bool] = True
    displaces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_probability("sampling_probability", self.probability)
        _check_count("max_units", self.max_units, "population", self.population)

    @classmethod
    def build(cls, options: TruncatedPoissonConfig, wanted: Wanted) -> Sampling:
        """Return the sampler of the expected rate, with the cap `max_cohort_size`."""
        if wanted.counted > wanted.population:
            wanted.refuse_population(cls.kind)
        return cls(wanted.rate, min(options.max_cohort_size, wanted.population), wanted.population)

    def in_words(self, noun: str) -> str:
        """Return the sampling in words."""
        return f"Poisson sampling of {noun}, truncated at {self.max_units} a round"

    def expected_units(self, num_units: int) -> float:
        """Return the average cohort size for a pool of `num_units` units."""
        below = np.arange(min(self.max_units, num_units))
        return float(scipy.stats.binom.sf(below, num_units, self.probability).sum())

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the drawn units; above the cap, those with the smallest uniforms."""
        if num_units > self.population:
            raise ValueError(
                f"population = {self.population}: there are {num_units} units, and truncation "
                "is accounted for at most the population"
            )
        uniforms = coins.of_units(round)
        drawn = _poisson(uniforms, self.probability)
        if len(drawn) <= self.max_units:
            return drawn
        return _smallest(uniforms, self.max_units)

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return the truncated sampled Gaussian, for one unit per user."""
        from dp_accounting import dp_event  # noqa: PLC0415

        _one_unit(self.kind, units_per_user)
        return dp_event.TruncatedSubsampledGaussianDpEvent(
            dataset_size=self.population,
            sampling_probability=self.probability,
            truncated_batch_size=self.max_units,
            noise_multiplier=noise_multiplier,
        )


@dataclass(frozen=True)
class _SameSize(Sampling):
    """Cohorts of the same size in every round."""

    size: int
    population: int

    def __post_init__(self) -> None:
        _check_count("size", self.size, "population", self.population)

    @classmethod
    def build(cls, options: SamplingConfig, wanted: Wanted) -> Sampling:
        """Return cohorts of the expected size, a whole number."""
        if wanted.counted != wanted.population:
            wanted.refuse_population(cls.kind)
        if wanted.rate and wanted.expected != int(wanted.expected or 0):
            raise ConfigError(
                f"{wanted.field} = {wanted.expected}: {cls.kind} sampling needs a whole number"
            )
        return cls(int(wanted.expected or 0), wanted.population)

    @property
    def probability(self) -> float:  # type: ignore[override]
        """Size / population; for shuffled passes, the rate of the accounted Poisson sampling."""
        return self.size / self.population


@dataclass(frozen=True)
class FixedSizeSampling(_SameSize):
    """In every round a uniform subset of the same size, drawn without replacement.

    Accounted by RDP under replace-one (Wang et al. 2019): the number of users is public.

    Attributes:
        size: cohort size, in [1, population].
        population: number of units; `draw` raises for any other number.
    """

    kind: ClassVar[str] = "fixed-size"
    sums_alone: ClassVar[bool] = True
    hides_size: ClassVar[bool] = False
    displaces: ClassVar[bool] = True
    accountant: ClassVar[str | None] = "rdp"

    def in_words(self, noun: str) -> str:
        """Return the sampling in words."""
        return f"fixed-size sampling of {self.size} {noun} without replacement"

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return a uniform subset of `size` units."""
        _check_population(self.population, num_units)
        return _smallest(coins.of_units(round), self.size)

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return sampling without replacement of a Gaussian with half the noise multiplier.

        dp_accounting's RDP reads the inner noise multiplier as noise over the sensitivity of
        *replacing*. A replaced user moves the sum by twice the bound of one user.
        """
        import dp_accounting  # noqa: PLC0415

        _one_unit(self.kind, units_per_user)
        return dp_accounting.SampledWithoutReplacementDpEvent(
            self.population, self.size, dp_accounting.GaussianDpEvent(noise_multiplier / 2.0)
        )


@dataclass(frozen=True)
class ShuffledSampling(_SameSize):
    """Passes over the units in random order, `size` units a round; each pass skips the remainder.

    Charles et al. 2024 and Chua et al. 2024 (B.3) train this way and account it as Poisson. That ε
    belongs to another mechanism and is no guarantee for a shuffled run; reports say so.

    Attributes:
        size: cohort size, in [1, population].
        population: number of units; `draw` raises for any other number.
    """

    kind: ClassVar[str] = "shuffled"
    sums_alone: ClassVar[bool] = True
    guaranteed: ClassVar[bool] = False

    def in_words(self, noun: str) -> str:
        """Return the sampling in words, with the accounted one in parentheses."""
        return f"shuffled passes over {noun} (accounted as Poisson sampling)"

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the next `size` units of the pass that contains this round.

        `coins` must return the same uniforms at each call for a round: all rounds of a pass use
        those of its first round.
        """
        _check_population(self.population, num_units)
        rounds_a_pass = num_units // self.size
        number, position = divmod(round, rounds_a_pass)
        order = np.argsort(coins.of_units(number * rounds_a_pass), kind="stable")
        return np.sort(order[position * self.size : (position + 1) * self.size])

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return the event of Poisson sampling at the same rate."""
        return _poisson_event(self.probability, noise_multiplier, units_per_user)


@dataclass(frozen=True)
class BalancedSampling(Sampling):
    """Every unit takes part once in each pass over the units, in a round that it draws itself.

    A run has `participations` passes of rounds/participations rounds, rounded down or up. Units
    draw independently, so the cohort's size is binomial. Also called balls in bins (Chua et al.
    2024) and random allocation (Feldman and Shenfeld 2025).
    `fedsim.accounting.methods.random_allocation` prices the whole run.

    Attributes:
        rounds: T, number of rounds of the run, fixed before the first round.
        participations: k, number of passes, in [1, rounds].

    Examples:
        >>> law = BalancedSampling(rounds=100, participations=3)
        >>> law.pass_sizes, law.pass_of(32), law.pass_of(33)
        ({33: 2, 34: 1}, (0, 33), (33, 33))
    """

    rounds: int
    participations: int
    kind: ClassVar[str] = "balanced"
    options: ClassVar[type[SamplingConfig]] = BalancedConfig
    sums_alone: ClassVar[bool] = True
    accountant: ClassVar[str | None] = "random-allocation"

    def __post_init__(self) -> None:
        _check_count("participations", self.participations, "rounds", self.rounds)

    @property
    def run_rounds(self) -> int:
        """All rounds: they share one price."""
        return self.rounds

    @property
    def pass_sizes(self) -> dict[int, int]:
        """Number of passes of each length; there are one or two lengths."""
        size, longer = divmod(self.rounds, self.participations)
        sizes = {size: self.participations - longer, size + 1: longer}
        return {size: count for size, count in sizes.items() if count}

    def pass_of(self, round: int) -> tuple[int, int]:
        """Return the first round and the length of the pass that contains `round`."""
        number = ((round + 1) * self.participations - 1) // self.rounds
        first, end = (n * self.rounds // self.participations for n in (number, number + 1))
        return first, end - first

    @property
    def probability(self) -> float:  # type: ignore[override]
        """k/T; the mean over the rounds if passes have two lengths."""
        return self.participations / self.rounds

    @classmethod
    def build(cls, options: BalancedConfig, wanted: Wanted) -> BalancedSampling:
        """Return the sampler with the configured passes, or those of the expected cohort size."""
        count, expected, rounds = options.participations, wanted.expected, wanted.rounds
        if count is None:
            share = wanted.rate * rounds
            count = max(1, round(share))
            if Fraction(expected or 0.0) * rounds != count * wanted.population:
                raise ConfigError(
                    f"{wanted.field} = {expected:g}: gives {share:g} rounds of {rounds} to each of "
                    f"{wanted.population} {wanted.noun}, but balanced sampling needs a whole "
                    f"number; give participations = {count} instead"
                )
        elif expected is not None:
            raise ConfigError(
                f"{wanted.field} = {expected:g} with participations = {count}: each determines the "
                "other; give one"
            )
        with about("strategy.sampling."):
            return cls(rounds, count)

    def in_words(self, noun: str) -> str:
        """Return the sampling in words."""
        *shorter, size = self.pass_sizes
        rounds = f"{shorter[0]} or {rounds_text(size)}" if shorter else rounds_text(size)
        if self.participations == 1:
            return f"balanced sampling of {noun} once in {rounds}"
        return (
            f"balanced sampling of {noun} once in each of {self.participations} passes of {rounds}"
        )

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the units that drew this round in its pass.

        `coins` must return the same uniforms at each call for a round: a pass has one draw.
        """
        if not 0 <= round < self.rounds:
            raise ValueError(f"round = {round}: the run has {self.rounds} rounds")
        first, size = self.pass_of(round)
        drawn = (coins.of_units(first) * size).astype(np.int64)
        return np.flatnonzero(drawn == round - first).astype(np.int64)

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return `UnsupportedDpEvent`: the rounds of one user are not independent.

        Raises:
            ValueError: more than one unit per user, which has no proved price.
        """
        from dp_accounting import dp_event  # noqa: PLC0415

        _one_unit(self.kind, units_per_user)
        return dp_event.UnsupportedDpEvent()


@dataclass(frozen=True)
class CyclicSampling(Sampling):
    """Groups of units take turns; in its group's turn every unit flips a coin.

    A unit draws its group independently, once for the whole run; round t is the turn of group
    t mod `groups`. So two rounds of one unit are at least `groups` rounds apart, as correlated
    noise (`fedsim.noise.matrix`) requires. With rate 1 a whole group takes part.

    A unit flips coins only in its turns, at most ⌈rounds/groups⌉. So the run costs the same as that
    number of rounds of Poisson sampling at the rate of a turn (Choquette-Choo et al. 2023,
    arXiv:2306.08153, Theorem 4). Groups may be known: divergences are jointly convex.

    Attributes:
        rounds: T, number of rounds of the run, fixed before the first round.
        groups: b, number of groups, in [1, rounds].
        rate: probability of a coin in a turn, in (0, 1].
        priced_rate: rate in the price, in [rate, 1]; None for `rate`. It is 1 for noise that has no
            proved price with coins.
    """

    rounds: int
    groups: int
    rate: float
    priced_rate: float | None = None
    kind: ClassVar[str] = "cyclic"
    options: ClassVar[type[SamplingConfig]] = CyclicConfig
    sums_alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_count("groups", self.groups, "rounds", self.rounds)
        _check_probability("rate", self.rate)
        if not self.rate <= self.charged_rate <= 1.0:
            raise ValueError(f"priced_rate = {self.priced_rate}: give a number from rate to 1")

    @property
    def charged_rate(self) -> float:
        """The rate of a turn in the price; skipping turns does not raise the cost."""
        return self.rate if self.priced_rate is None else self.priced_rate

    @property
    def run_rounds(self) -> int:
        """All rounds: they share one price."""
        return self.rounds

    @property
    def events(self) -> int:
        """Maximum number of turns of a group."""
        return -(-self.rounds // self.groups)

    @property
    def probability(self) -> float:  # type: ignore[override]
        """Probability of a unit in a round, over its random group and coin."""
        return self.rate / self.groups

    @classmethod
    def build(cls, options: CyclicConfig, wanted: Wanted) -> Sampling:
        """Return the sampler of the expected cohort size; without one, of whole groups."""
        groups, size = options.groups, wanted.population
        rate = 1.0 if wanted.expected is None else wanted.expected * groups / size
        if rate > 1.0:
            raise ConfigError(
                f"{wanted.field} = {wanted.expected:g} with strategy.sampling.groups = {groups}: a "
                f"group has {size / groups:g} of {size} {wanted.noun} on average; give at most "
                "that number, or omit the key for whole groups"
            )
        with about("strategy.sampling."):
            return cls(wanted.rounds, groups, rate)

    def coins_met(self, rounds: int) -> tuple[float, int]:
        """Return the rate of a turn in the price, and the maximum number of a group's turns."""
        return self.charged_rate, -(-rounds // self.rounds) * self.events

    def in_words(self, noun: str) -> str:
        """Return the sampling in words."""
        if self.rate == 1.0:
            return f"cyclic sampling of {noun}, one whole group of {self.groups} in turn"
        priced = " (accounted as whole groups)" if self.charged_rate == 1.0 else ""
        return f"cyclic Poisson sampling of {noun}, one group of {self.groups} in turn{priced}"

    def chance_in_words(self, noun: str) -> str:
        """Return the words on a unit's probability in its turns, and on their number."""
        turns = f"turn{'s' if self.events > 1 else ''} ({self.events} at most)"
        return f", each {noun.removesuffix('s')} with probability {self.rate:g} in its {turns},"

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the units of this turn's group whose uniform is below `rate`.

        Users draw groups, so all units of a user are in one group. `coins` must return the same
        uniforms at each call for a round.
        """
        if not 0 <= round < self.rounds:
            raise ValueError(f"round = {round}: the run has {self.rounds} rounds")
        group = (coins.of_users(0) * self.groups).astype(np.int64)
        turn = group == round % self.groups
        if self.rate < 1.0:
            turn &= coins.of_units(round) < self.rate
        return np.flatnonzero(turn).astype(np.int64)

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return the event of one turn: Poisson sampling, with a user's units in one group."""
        return _poisson_event(self.charged_rate, noise_multiplier, units_per_user)


def _poisson(uniforms: Uniforms, probability: float) -> Indices:
    """Return the indices of uniforms below `probability`, ascending."""
    return np.flatnonzero(uniforms < probability).astype(np.int64)


def _smallest(uniforms: Uniforms, size: int) -> Indices:
    """Return the `size` units with the smallest uniforms, ascending: a uniform subset."""
    return np.sort(np.argsort(uniforms, kind="stable")[:size]).astype(np.int64)


def _poisson_event(
    probability: float, noise_multiplier: float, units_per_user: int
) -> dp_accounting.DpEvent:
    import dp_accounting  # noqa: PLC0415

    if units_per_user == 1:
        return dp_accounting.PoissonSampledDpEvent(
            probability, dp_accounting.GaussianDpEvent(noise_multiplier)
        )
    return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        noise_multiplier,
        list(range(units_per_user + 1)),
        binomial_probabilities(units_per_user, probability),
    )


def _check_probability(name: str, probability: float) -> None:
    if not 0.0 < probability <= 1.0:
        raise ValueError(f"{name} = {probability!r}: give a number in (0, 1]")


def _check_count(name: str, count: int, most: str, limit: int) -> None:
    if not 1 <= count <= limit:
        raise ValueError(f"{name} = {count}: give a number from 1 to {most} = {limit}")


def _check_population(population: int, num_units: int) -> None:
    if num_units != population:
        raise ValueError(
            f"population = {population}: there are {num_units} units; a fixed-size draw needs the "
            "true number, which is public under its relation"
        )


def _one_unit(kind: str, units_per_user: int) -> None:
    if units_per_user > 1:
        raise ValueError(
            f"sampling kind {kind!r}: no proved cost for {units_per_user} units per "
            'user; take "poisson"'
        )


def rounds_text(count: int) -> str:
    """Return a number of rounds in words."""
    return f"{count} round{'' if count == 1 else 's'}"


def binomial_probabilities(trials: int, probability: float) -> list[float]:
    """Return P(Binomial(trials, probability) = i) for i = 0 … trials, summing to 1.

    The accountant needs *relative* accuracy in the upper tail: it multiplies a term of 1e-60 by a
    likelihood ratio that can be near 1e60. scipy's pmf is accurate to 1e-12 for thousands of
    trials; powers and binomial coefficients in floats overflow. The rounded terms miss the sum 1
    by a few units in the last place. Dividing by the sum matters: with missing mass on one side of
    the pair, the accountant would compute too small a divergence.

    Examples:
        >>> [round(value, 6) for value in binomial_probabilities(2, 0.5)]
        [0.25, 0.5, 0.25]
    """
    pmf = scipy.stats.binom.pmf(np.arange(trials + 1), trials, probability)
    return [float(value) for value in pmf / math.fsum(pmf)]
