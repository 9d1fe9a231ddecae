"""The tolerance for floating-point rounding in the sensitivity of a sum."""

from __future__ import annotations

ROUNDING_TOLERANCE = 2.0**-8
"""Share of the clip's bound that is added to the sensitivity of a sum, to cover rounding.

Adding a unit may change the last bits of other units' gradients and of the sum. In total it moves
the sum by at most bound * (1 + ROUNDING_TOLERANCE). This is not proved, but tested for each engine
and precision in `tests/privacy/test_engine_sensitivity.py`. It costs 0.4 % more noise.
"""
