"""The margin for rounded sums: how far rounding lets one unit move a sum, as the noise covers it.

A unit adds at most the clip's bound S. But float32 sums are rounded, and how the others' updates
are rounded depends on who is there. What the noise is scaled to is therefore not S but
S·(1 + `rounding_share(W)`), W the weight of all units in the sum: 2⁻¹⁸·W, or 0.04 % for W = 100.
The share is of two sums, with and without the unit. Three parts, u = 2⁻²⁴:

- *Proved*: 50u·W. The engine `materialised` adds clipped rows in float32, where a term is rounded
  24 times at most, each 128 rows (`sum_of_rows` in `clipped_sums`). So does `ghost` with units of
  many positions. A worker's sum is rounded to float32 once more before it travels. So either sum is
  within 25u·W·S of the exact one. All else, across chunks, shards and nodes, and from the first
  unit on in local training, the engines `loop` and `vmap` and under Flower, is added in float64:
  that rounds by n·2⁻⁵³·W·S at most for n units.
- *Measured, not proved*: the other 14u·W are for what has no proved bound. `ghost` adds the other
  units by one matrix product over the positions of all; any order of summation is allowed to be off
  by as many u as there are positions, times lengths that may exceed S. (Units so added need none of
  the 48u for formed rows; where all repeat one word, they took 27u.) And the last bits of
  every unit's own gradient can depend on the shape of the pass that computed it. To what length a
  row is padded, and how a unit's rows are spread over passes, is of the unit alone, and passes are
  so large that on one thread of the processors that were tried a row has the same bits beside any
  others (`PassShape` in `clients/engines/pass_shape.py`); on several threads it has not.
  `tests/privacy/test_engine_sensitivity.py` measures both, several hundred units that a newcomer
  shifts from one chunk and pass to another, the units all alike (so that all are off the same way)
  or all different, and wide layers. A steep network makes more of such a bit, so steep networks
  share no pass (`clients/engines/steepness.py`); where bits differ, others have moved by more than
  14u in networks that are not steep. Where the terms of a unit's gradient nearly cancel, more
  of its bits are so:
  `materialised` and `ghost` add a unit alone whose terms, of a matrix of every kind, are over 4√n
  times what the clip leaves of their sum, n its positions (`Masses` in `gradient_terms`). `vmap`
  sees no terms and has no such test; its loss is torch's, with softmax − 1 at the next token.
- *Not covered*: steps. A unit whose ghost norm is just where pairs become too inexact is computed
  in another way, with another margin of the clip. It adds less than the bound either way.
"""

from __future__ import annotations

import math

_SHARE = 2.0**-18  # of the bound, a unit of weight
_LOG_RARE = 20.0 * math.log(10.0)  # sums of more weight than `most_weight` are rarer than 1e-20


def rounding_share(weight: float) -> float:
    """Return the share of the bound by which a unit moves the rounding of so much weight.

    Examples:
        >>> f"{rounding_share(1000.0):.2g}"
        '0.0038'
    """
    return _SHARE * weight


def most_weight(expected: float, total: float) -> float:
    """Return what the weight of a round's units exceeds with probability 1e-20 at most.

    Bernstein's inequality for independent weights in [0, 1] and coins: over μ + t with probability
    exp(-t²/(2μ + 2t/3)) at most. It holds for a cohort of a fixed size, drawn without
    replacement, too (Hoeffding 1963, Theorem 4), and a cap only makes the weight smaller.

    Args:
        expected: μ.
        total: of all units, drawn or not.

    Examples:
        >>> round(most_weight(100.0, 10_000.0), 2)
        212.54
        >>> most_weight(100.0, 100.0)
        100.0
    """
    third = _LOG_RARE / 3.0
    return min(total, expected + third + math.sqrt(third**2 + 2.0 * _LOG_RARE * expected))
