"""Safe rounding: noise and ε are rounded up, lower bounds are rounded down."""

from __future__ import annotations

import decimal
import math


def round_up(value: float, digits: int) -> float:
    """Return the smallest decimal of `digits` significant digits that is >= `value`.

    Infinities and NaN are returned unchanged.

    Examples:
        >>> round_up(7.99812, 4), round_up(2.0, 4)
        (7.999, 2.0)
    """
    if not math.isfinite(value):
        return value
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return float(context.create_decimal(decimal.Decimal(value)))


def text_down(value: float, digits: int = 4) -> str:
    """Return the largest decimal of `digits` significant digits that is <= `value`, as text.

    Lower bounds are printed this way.

    Examples:
        >>> text_down(0.22872), text_down(1.99999), text_down(2.0), text_down(0.0)
        ('0.2287', '1.999', '2', '0')
    """
    nearest = float(f"{value:.{digits}g}")
    enough = nearest <= value * (1.0 + 1e-12)
    return f"{nearest if enough else 0.0 - round_up(-value, digits):g}"


def text_up(value: float, digits: int = 6) -> str:
    """Return `round_up` as its shortest text, for an ε or a δ.

    Examples:
        >>> text_up(0.001), text_up(1.0000004e-5), text_up(8.0)
        ('0.001', '1.00001e-05', '8')
    """
    nearest = float(f"{value:.{digits}g}")
    enough = nearest >= value * (1.0 - 1e-12)  # tolerates the rounding of a sum of decimals
    return f"{nearest if enough else round_up(value, digits):g}"
