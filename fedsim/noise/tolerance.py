"""The tolerance for floating point: how much larger than the clip's bound the noise takes it."""

from __future__ import annotations

ROUNDING_TOLERANCE = 2.0**-8
"""Share of the clip's bound that is added to the sensitivity of a sum, for all rounding in it.

Adding a unit may change the last bits of other units' gradients and of the sum. All in all it moves
the sum by at most bound * (1 + ROUNDING_TOLERANCE), which is not proved, but tested for each engine
and precision in `tests/privacy/test_engine_sensitivity.py`. The cost is 0.4 % more noise.
"""
