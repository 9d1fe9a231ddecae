"""Planning by arithmetic: noise of ULS and ELS at equal compute, and the choice of δ.

Charles et al. 2024, §3: with losses that are L-Lipschitz the clip changes nothing, and the
gradient estimate of a round is the mean of about B example gradients plus Gaussian noise. How
large that noise is decides most of what privacy costs. All functions are arithmetic on public
numbers.
"""

from __future__ import annotations

import math

from fedsim.errors import ConfigError


def els_noise_stddev(*, noise_multiplier: float, l2_clip_norm: float, batch_size: float) -> float:
    """Return the standard deviation of a coordinate of ELS's noise, eq. 5: σ_ELS L_ELS / B.

    Args:
        noise_multiplier: σ_ELS >= 0.
        l2_clip_norm: L_ELS > 0, the bound on one example's gradient; the unit of the result.
        batch_size: B > 0, the expected examples a round.

    Raises:
        ConfigError: an argument out of range.

    Examples:
        >>> els_noise_stddev(noise_multiplier=2.0, l2_clip_norm=1.0, batch_size=64)
        0.03125
    """
    return _noise_stddev(noise_multiplier, l2_clip_norm, "batch_size", batch_size)


def uls_noise_stddev(*, noise_multiplier: float, l2_clip_norm: float, cohort_size: float) -> float:
    """Return the standard deviation of a coordinate of ULS's noise, eq. 6: σ_ULS L_ULS / M.

    Args:
        noise_multiplier: σ_ULS >= 0.
        l2_clip_norm: L_ULS > 0, the bound on one user's mean gradient; the unit of the result.
        cohort_size: M > 0, the expected users a round.

    Raises:
        ConfigError: an argument out of range.
    """
    return _noise_stddev(noise_multiplier, l2_clip_norm, "cohort_size", cohort_size)


def variance_ratio(*, els_stddev: float, uls_stddev: float) -> float:
    """Return var(ζ_ELS) / var(ζ_ULS) of a coordinate: below 1, ELS adds less noise.

    Raises:
        ConfigError: a standard deviation that is not positive and finite; the ratio of no noise
            to no noise means nothing.
    """
    _check_positive(els_stddev=els_stddev, uls_stddev=uls_stddev)
    return (els_stddev / uls_stddev) ** 2


def els_adds_no_more_noise(
    *,
    els_noise_multiplier: float,
    els_l2_clip_norm: float,
    uls_noise_multiplier: float,
    uls_l2_clip_norm: float,
    uls_group_size: float,
) -> bool:
    """Return whether var(ζ_ELS) <= var(ζ_ULS) at equal compute B = G_ULS M, by condition (7).

    That is L_ELS σ_ELS / (L_ULS σ_ULS) <= G_ULS: no other number of the setting matters.

    Raises:
        ConfigError: an argument that is not positive and finite.
    """
    _check_positive(**locals())
    return (
        els_l2_clip_norm * els_noise_multiplier
        <= uls_group_size * uls_l2_clip_norm * uls_noise_multiplier
    )


def equal_compute_probability(
    *, gradients_per_round: float, group_size: int, num_users: int
) -> float:
    """Return the sampling probability at which a round computes B gradients in expectation.

    It is B / (G N) for both, of examples with G = G_ELS (p) and of users with G = G_ULS (q).

    Args:
        gradients_per_round: B > 0.
        group_size: G >= 1, examples of each user; every user is taken to have as many.
        num_users: N >= 1.

    Raises:
        ConfigError: an argument out of range, or a B that N users with G examples each cannot
            make even if all take part.
    """
    _check_positive(**locals())
    probability = gradients_per_round / (group_size * num_users)
    if probability > 1.0:
        raise ConfigError(
            f"gradients_per_round = {gradients_per_round:g}: {num_users} users with {group_size} "
            f"examples each have only {group_size * num_users}; give at most that, a larger "
            "group_size or more users"
        )
    return probability


def signal_to_noise(
    *, mean_gradient_norm: float, noise_stddev: float, num_parameters: int
) -> float:
    """Return |ḡ| / √(E|ζ|²) = |ḡ| / (√d · stddev): how a round's mean gradient compares to noise.

    Both are L2 norms over all d trained parameters. Below 1 a single round moves mostly at
    random; many rounds average that out. The spread of the sampled gradients is not counted.

    Args:
        mean_gradient_norm: |ḡ| >= 0, of the mean the round estimates, after clipping.
        noise_stddev: of a coordinate, > 0, in the same unit.
        num_parameters: d >= 1.

    Raises:
        ConfigError: an argument out of range.
    """
    if not (mean_gradient_norm >= 0.0 and math.isfinite(mean_gradient_norm)):
        raise ConfigError(f"mean_gradient_norm = {mean_gradient_norm!r}: give a finite number >= 0")
    _check_positive(noise_stddev=noise_stddev, num_parameters=num_parameters)
    return mean_gradient_norm / (math.sqrt(num_parameters) * noise_stddev)


def delta_of_population(num_users: int, exponent: float = 1.1) -> float:
    """Return δ = n^-exponent, the habit of both papers (McMahan et al. 2018, Table 1).

    Args:
        num_users: n >= 2, at best a public number: a δ made of a private count tells that count.
        exponent: above 1 keeps δ below 1/n.

    Raises:
        ConfigError: fewer than two users, or an exponent whose δ is not in (0, 1).
    """
    _check_population(num_users)
    delta = num_users**-exponent if math.isfinite(exponent) else math.nan
    if not 0.0 < delta < 1.0:
        raise ConfigError(
            f"exponent = {exponent!r}: n^-exponent is not in (0, 1) for n = {num_users}; "
            "give about 1.1"
        )
    return delta


def is_promise(delta: float, num_users: int) -> bool:
    """Return whether δ < 1/n: else to publish all about one user at random would keep it."""
    return delta * num_users < 1.0


def delta_sentence(
    delta: float,
    num_users: int,
    public: bool,
    origin: str = "a number declared public",
    noun: str = "users",
) -> str:
    """Return a sentence with δ as a power of n, and a warning where δ is not below 1/n.

    Args:
        delta: in (0, 1).
        num_users: n >= 2, the users it is measured against.
        public: whether n is a public number; if not, it was counted in the data.
        origin: why it is public, in words.
        noun: what is counted: "users", or "owners".

    Raises:
        ConfigError: delta outside (0, 1), or fewer than two users.
    """
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta = {delta!r}: give a number in (0, 1)")
    _check_population(num_users)
    exponent = -math.log(delta) / math.log(num_users)
    if not public:
        origin = "counted in the private data, which the guarantee does not cover"
    sentence = f"δ = {delta:.3g} is n^-{exponent:.3g} for n = {num_users:,} {noun}, {origin}."
    if not is_promise(delta, num_users):
        sentence += (
            f" Warning: δ is not below 1/n = {1 / num_users:.3g}, so even publishing everything "
            "about one user drawn at random would keep the promise; take a smaller δ."
        )
    return sentence


def _noise_stddev(
    noise_multiplier: float, l2_clip_norm: float, count_name: str, count: float
) -> float:
    if not (noise_multiplier >= 0.0 and math.isfinite(noise_multiplier)):
        raise ConfigError(f"noise_multiplier = {noise_multiplier!r}: give a finite number >= 0")
    _check_positive(**{"l2_clip_norm": l2_clip_norm, count_name: count})
    return noise_multiplier * l2_clip_norm / count


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0.0 and math.isfinite(value)):
            raise ConfigError(f"{name} = {value!r}: give a finite number > 0")


def _check_population(num_users: int) -> None:
    if num_users < 2:  # log 1 is 0: the n^-x of one user is 1 for every x
        raise ConfigError(f"num_users = {num_users!r}: give an integer >= 2")
