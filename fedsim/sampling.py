"""Samplers, each drawn and accounted by the same value; and the neighbouring relations.

Six samplers, each drawn exactly as it is accounted, save one that says that it is not:

| sampler | cohort | accounted as | relation |
|---|---|---|---|
| Poisson | Binomial | Poisson | all four |
| truncated Poisson | Binomial, cut to a cap | truncated Poisson | of users |
| fixed size | always the same | sampling without replacement (RDP) | replace-one |
| balanced | Binomial, everybody once a pass | random allocation, a whole run | no replace-one |
| cyclic | Binomial, of one group in turn | a Poisson round a turn, a whole run | of users |
| shuffled | always the same | Poisson, which it is not: no guarantee | of Poisson |

A new one is a subclass of `Sampling` (below) under an entry point of the group `fedsim.samplers`:
`docs/how-to/own-parts.md`. Relations "of users" are the first three of `Relation`.
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

if TYPE_CHECKING:  # each function imports what it needs: a worker draws and accounts nothing
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

    The last is for texts that belong to several people, for every owner of any text (Ganesh et
    al. 2025, arXiv:2503.03622). Of the others, replacing is removing and adding: the strongest, at
    the same noise the dearest.
    A noise multiplier is always the noise over what *one user can add*; what replacing moves,
    twice as much, is the accountant's business.
    """

    ADD_OR_REMOVE = "add-or-remove-one"
    ZERO_OUT = "zero-out-one"
    REPLACE = "replace-one"
    FIXED_GRAPH = "fixed-graph"

    @property
    def phrase(self) -> str:
        """The words of reports and statements.

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
        """Whose guarantee it is."""
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
    """How the units of a round are drawn, and the privacy event that this costs.

    A subclass is a frozen dataclass whose fields are numbers: they are what ledgers keep. Its
    entry point in `fedsim.samplers` has the name `kind`.

    Formal guarantees, which the ε rests on:

    - `draw` has the law that `event` is the price of, for every population that it accepts. It
      looks at `coins`, the round and the number of units alone, never at data.
    - One unit's presence changes the draw of no other unit, unless `displaces`.
    - `event(z, k)` dominates a round in which one user owns at most k units, each unit adds at most
      1 to the sum, and noise of standard deviation z is added. With `run_rounds`, `events` such
      events dominate the whole run.
    - `probability` is that of a unit in a round; the denominator uses it.
    """

    kind: ClassVar[str]
    options: ClassVar[type[SamplingConfig]] = SamplingConfig
    guaranteed: ClassVar[bool] = True
    """Whether `event` describes `draw`. If not, an ε computed from it is hypothetical."""
    hides_size: ClassVar[bool] = True
    """Whether the number of units may stay private.

    By default the relation is then add-or-remove-one, else replace-one.
    """
    displaces: ClassVar[bool] = False
    """Whether, in what is accounted, adding a unit can push another one out of the cohort."""
    accountant: ClassVar[str | None] = None
    """The accountant that is meant for it; None: a PLD."""
    sums_alone: ClassVar[bool] = False
    """Whether rounds release nothing of private data but noisy sums, in which a unit takes part
    with `coins`' probability: then a bound on total variation saves the accountant's work."""
    probability: float

    @property
    def run_rounds(self) -> int | None:
        """The number of rounds that the price is of, all or none; None: each has a price.

        Such a sampler draws from the coins of earlier rounds too, so a round can be repeated.
        """
        return None

    @property
    def events(self) -> int:
        """How many times `event` is composed: for one round, or for all `run_rounds` of a run."""
        return 1

    def coins_met(self, rounds: int) -> tuple[float, int]:
        """Return the rate and the number of the coins that a unit meets in these rounds."""
        whole = self.run_rounds
        return self.probability, rounds if whole is None else -(-rounds // whole) * whole

    def in_words(self, noun: str) -> str:
        """Return what a report calls the sampling of "users" or "examples"."""
        return f"{self.kind} sampling of {noun}"

    def chance_in_words(self, noun: str) -> str:
        """Return what a report adds to that: with which probability a unit takes part."""
        return f" with probability {self.probability:g}"

    @classmethod
    def build(cls, options: Any, wanted: Wanted) -> Sampling:  # noqa: ANN401  (a subclass's own)
        """Return the sampler of a config.

        Args:
            options: the table `strategy.sampling`, an instance of `cls.options`.
            wanted: what else of the config decides it.

        Raises:
            ConfigError: the two do not go together.
        """
        raise NotImplementedError

    @abstractmethod
    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the indices of the units drawn in a round, ascending; possibly none.

        Args:
            num_units: how many there are to draw from.
            round: the round, from 0.
            coins: uniforms of a round, one for each unit. A seeded unit has the same ones
                whoever else is there, so compare each by itself, or take the smallest.

        Raises:
            ValueError: `num_units` is not what the accounting rests on.
        """

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return what one round costs a user who owns at most `units_per_user` units.

        A run with one price costs `events` of these; `UnsupportedDpEvent` where only the sampler's
        own accountant has a price. By default `NonPrivateDpEvent`: then there is no ε.

        Args:
            noise_multiplier: noise standard deviation over what one unit can add, > 0.
            units_per_user: 1 in ULS, the group size in ELS.

        Raises:
            ValueError: no proved cost is known.
        """
        import dp_accounting  # noqa: PLC0415

        return dp_accounting.NonPrivateDpEvent()


@dataclass(frozen=True)
class Wanted:
    """What a sampler is built for.

    Attributes:
        expected: units a round, on average or exactly; None where the config leaves it out.
        population: the public number of units.
        counted: the true number.
        rounds: of the run.
        field: the key of `expected`, for messages.
        noun: what is drawn, for messages.
    """

    expected: float | None
    population: int
    counted: int
    rounds: int
    field: str
    noun: str

    @property
    def rate(self) -> float:
        """The expected share of the population, or a `ConfigError` if it is missing or over 1."""
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
        """Raise `ConfigError` where a price rests on another population than the true one."""
        raise ConfigError(
            f"strategy.sampling.kind = {kind!r}: the price rests on a population of "
            f"{self.population}, but there are {self.counted} {self.noun}; declare the true "
            'number, or take kind = "poisson"'
        )


class TruncatedPoissonConfig(SamplingConfig):
    """Poisson sampling whose cohorts are cut to a cap."""

    max_cohort_size: Annotated[int, Field(ge=1, le=MOST)]
    """Most units of a round; if more are drawn, a random choice is left out."""


class BalancedConfig(SamplingConfig):
    """Everybody takes part once in each pass over the users."""

    participations: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Rounds in which each user takes part; left out, computed from `cohort_size`."""


class CyclicConfig(SamplingConfig):
    """Groups of users take turns."""

    groups: Annotated[int, Field(ge=1, le=MOST)]
    """Number of groups."""


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Every unit flips its own coin: the cohort's size is Binomial(num_units, probability).

    This is the sampling that the amplification theorems are about (Charles et al. 2024,
    Algorithms 1 and 2; McMahan et al. 2018, §2 A).

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
        """Return a coin of the expected rate for each unit."""
        return cls(wanted.rate)

    def in_words(self, noun: str) -> str:
        """Return the sampling in words."""
        return f"Poisson sampling of {noun}"

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the units whose coin fell."""
        return _poisson(coins.of_units(round), self.probability)

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return the Poisson-sampled Gaussian, or the mixture that several coins a user give."""
        return _poisson_event(self.probability, noise_multiplier, units_per_user)


@dataclass(frozen=True)
class TruncatedPoissonSampling(Sampling):
    """Poisson sampling, but of a cohort above `max_units` a uniform subset of that size is kept.

    Memory and time of a round are bounded. A user can now displace another, so the price is
    above Poisson's, and depends on how often the cap is met (arXiv:2508.15089).

    Attributes:
        probability: of a unit's coin, in (0, 1].
        max_units: the cap on the cohort, >= 1.
        population: the public upper bound on the number of units that the price rests on.
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
        """Return coins of the expected rate, cut at `max_cohort_size`."""
        if wanted.counted > wanted.population:
            wanted.refuse_population(cls.kind)
        return cls(wanted.rate, min(options.max_cohort_size, wanted.population), wanted.population)

    def in_words(self, noun: str) -> str:
        """Return the sampling in words."""
        return f"Poisson sampling of {noun}, truncated at {self.max_units} a round"

    def expected_units(self, num_units: int) -> float:
        """Return how many of so many units take part in a round on average."""
        below = np.arange(min(self.max_units, num_units))
        return float(scipy.stats.binom.sf(below, num_units, self.probability).sum())

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the units whose coin fell; of too many, those with the smallest uniforms."""
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
        """Return the truncated sampled Gaussian of one unit a user."""
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
        """Size / population, of shuffled passes the rate of what is accounted instead."""
        return self.size / self.population


@dataclass(frozen=True)
class FixedSizeSampling(_SameSize):
    """Every round a uniform subset of the same size, drawn without replacement.

    Accounted by RDP under replace-one (Wang et al. 2019), where the number of users is public.

    Attributes:
        size: of the cohort, in [1, population].
        population: the number of units, which the draw insists on.
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
        """Return sampling without replacement of a Gaussian whose sensitivity is *replacing*.

        dp_accounting's RDP of this event reads the inner noise multiplier as noise over the
        sensitivity of the relation; a replaced user moves the sum by twice what one can add.
        """
        import dp_accounting  # noqa: PLC0415

        _one_unit(self.kind, units_per_user)
        return dp_accounting.SampledWithoutReplacementDpEvent(
            self.population, self.size, dp_accounting.GaussianDpEvent(noise_multiplier / 2.0)
        )


@dataclass(frozen=True)
class ShuffledSampling(_SameSize):
    """Passes over the units in random order, `size` at a time; a remainder waits for the next.

    Charles et al. 2024 and Chua et al. 2024 (B.3) train so and account it as Poisson: that ε is
    of another mechanism, no guarantee for a shuffled run, and reports say so.

    Attributes:
        size: of the cohort, in [1, population].
        population: the number of units, which the draw insists on.
    """

    kind: ClassVar[str] = "shuffled"
    sums_alone: ClassVar[bool] = True
    guaranteed: ClassVar[bool] = False

    def in_words(self, noun: str) -> str:
        """Return the sampling in words, and the one that is accounted instead."""
        return f"shuffled passes over {noun} (accounted as Poisson sampling)"

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the next `size` units of the pass that this round belongs to.

        `coins` must give the same draws each time it is asked for a round: a pass has many.
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
    """Every unit takes part once in each pass over the units, in a round that it draws alone.

    A run is `participations` passes of rounds/participations rounds, or where that is no whole
    number, of the two next to it. Units draw independently, so the cohort's size is binomial, and
    nobody learns who is in it. Also called balls in bins (Chua et al. 2024) and random allocation
    (Feldman and Shenfeld 2025); it is priced for the whole run by
    `fedsim.accounting.methods.random_allocation`.

    Attributes:
        rounds: T of the run, fixed before the first.
        participations: k, the number of passes, in [1, rounds].

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
        """All rounds: they have one price."""
        return self.rounds

    @property
    def pass_sizes(self) -> dict[int, int]:
        """How many passes have how many rounds: one length, or two successive ones."""
        size, longer = divmod(self.rounds, self.participations)
        sizes = {size: self.participations - longer, size + 1: longer}
        return {size: count for size, count in sizes.items() if count}

    def pass_of(self, round: int) -> tuple[int, int]:
        """Return the first round of the pass that a round is in, and the pass's length."""
        number = ((round + 1) * self.participations - 1) // self.rounds
        first, end = (n * self.rounds // self.participations for n in (number, number + 1))
        return first, end - first

    @property
    def probability(self) -> float:  # type: ignore[override]
        """k/T: the mean over the rounds, where passes have two lengths."""
        return self.participations / self.rounds

    @classmethod
    def build(cls, options: BalancedConfig, wanted: Wanted) -> BalancedSampling:
        """Return the passes of the options, or those that give the expected number a round."""
        count, expected, rounds = options.participations, wanted.expected, wanted.rounds
        if count is None:
            share = wanted.rate * rounds
            count = max(1, round(share))
            if Fraction(expected or 0.0) * rounds != count * wanted.population:
                raise ConfigError(
                    f"{wanted.field} = {expected:g}: gives {share:g} rounds of {rounds} to each of "
                    f"{wanted.population} {wanted.noun}, and balanced sampling needs a whole "
                    f"number; give participations = {count} in place of it"
                )
        elif expected is not None:
            raise ConfigError(
                f"{wanted.field} = {expected:g} with participations = {count}: each decides the "
                "other, give one"
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
        """Return the units that drew this round of its pass.

        `coins` must give the same draws each time it is asked for a round: a pass has one draw.
        """
        if not 0 <= round < self.rounds:
            raise ValueError(f"round = {round}: the run has {self.rounds} rounds")
        first, size = self.pass_of(round)
        drawn = (coins.of_units(first) * size).astype(np.int64)
        return np.flatnonzero(drawn == round - first).astype(np.int64)

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return an event that no library composes: rounds of one user are not independent.

        Raises:
            ValueError: several units a user, whose rounds together are not proved.
        """
        from dp_accounting import dp_event  # noqa: PLC0415

        _one_unit(self.kind, units_per_user)
        return dp_event.UnsupportedDpEvent()


@dataclass(frozen=True)
class CyclicSampling(Sampling):
    """Units are in groups that take turns; in its group's turn every unit flips a coin.

    A unit draws its group once, alone, for the whole run; round t is the turn of group t mod
    `groups`. So whoever takes part waits at least `groups` rounds, as correlated noise
    (`fedsim.noise.matrix`) needs it. With rate 1 a whole group takes part.

    A unit meets the coins of its turns only, ⌈rounds/groups⌉ at most, so the run costs what as many
    rounds of Poisson sampling at the rate of a turn cost (Choquette-Choo et al. 2023,
    arXiv:2306.08153, Theorem 4). Groups may be known: divergences are jointly convex.

    Attributes:
        rounds: T of the run, fixed before the first.
        groups: b, in [1, rounds].
        rate: of a coin in one's turn, in (0, 1].
        priced_rate: the rate that the price is of, in [rate, 1]: 1 for noise whose price has no
            proof with coins. None: `rate`.
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
        """The rate of a turn in the price; a unit that leaves turns out costs no more."""
        return self.rate if self.priced_rate is None else self.priced_rate

    @property
    def run_rounds(self) -> int:
        """All rounds: they have one price."""
        return self.rounds

    @property
    def events(self) -> int:
        """The most turns of a group."""
        return -(-self.rounds // self.groups)

    @property
    def probability(self) -> float:  # type: ignore[override]
        """Of a unit in a round whose group is not known."""
        return self.rate / self.groups

    @classmethod
    def build(cls, options: CyclicConfig, wanted: Wanted) -> Sampling:
        """Return turns with the expected number a round, or, left out, of whole groups."""
        groups, size = options.groups, wanted.population
        rate = 1.0 if wanted.expected is None else wanted.expected * groups / size
        if rate > 1.0:
            raise ConfigError(
                f"{wanted.field} = {wanted.expected:g} with strategy.sampling.groups = {groups}: a "
                f"group has {size / groups:g} of {size} {wanted.noun} on average; give at most "
                "that, or leave it out for whole groups"
            )
        with about("strategy.sampling."):
            return cls(wanted.rounds, groups, rate)

    def coins_met(self, rounds: int) -> tuple[float, int]:
        """Return the rate of a turn in the price, and the most turns of a group."""
        return self.charged_rate, -(-rounds // self.rounds) * self.events

    def in_words(self, noun: str) -> str:
        """Return the sampling in words."""
        if self.rate == 1.0:
            return f"cyclic sampling of {noun}, one whole group of {self.groups} in turn"
        priced = " (accounted as whole groups)" if self.charged_rate == 1.0 else ""
        return f"cyclic Poisson sampling of {noun}, one group of {self.groups} in turn{priced}"

    def chance_in_words(self, noun: str) -> str:
        """Return the probability in the turns of a unit's group, and how many these are."""
        turns = f"turn{'s' if self.events > 1 else ''} ({self.events} at most)"
        return f", each {noun.removesuffix('s')} with probability {self.rate:g} in its {turns},"

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return the units of the group whose turn it is and whose coin fell.

        Users draw groups, so all units of a user take turns together. `coins` must give the same
        draws each time it is asked for a round.
        """
        if not 0 <= round < self.rounds:
            raise ValueError(f"round = {round}: the run has {self.rounds} rounds")
        group = (coins.of_users(0) * self.groups).astype(np.int64)
        turn = group == round % self.groups
        if self.rate < 1.0:
            turn &= coins.of_units(round) < self.rate
        return np.flatnonzero(turn).astype(np.int64)

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return what one turn costs: that of Poisson sampling; a user's units are in one group."""
        return _poisson_event(self.charged_rate, noise_multiplier, units_per_user)


def _poisson(uniforms: Uniforms, probability: float) -> Indices:
    """Return the units whose coin fell, ascending."""
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
            f"population = {population}: there are {num_units} units; the rate of a fixed-size "
            "draw is only right for the true number, which is public here"
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

    What matters is *relative* accuracy in the upper tail: a term of 1e-60 is multiplied by a
    likelihood ratio that can be as large as it is small. scipy's pmf has it (better than 1e-12
    for thousands of trials); powers and binomial coefficients in floats overflow. Each term is
    rounded, so the sum misses 1 by a few units in the last place. Dividing by it matters:
    mass that is missing from one side of the pair is a sub-distribution, whose divergence the
    accountant would read as too small.

    Examples:
        >>> [round(value, 6) for value in binomial_probabilities(2, 0.5)]
        [0.25, 0.5, 0.25]
    """
    pmf = scipy.stats.binom.pmf(np.arange(trials + 1), trials, probability)
    return [float(value) for value in pmf / math.fsum(pmf)]
