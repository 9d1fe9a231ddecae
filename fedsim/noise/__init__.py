"""Gaussian noise on an estimate, independent or correlated over rounds.

gaussian.py   `release_`: noise addressed by parameter and position, rounded to a grid
tolerance.py  the relative increase of the sensitivity that covers floating-point rounding
matrix.py     matrices that correlate noise over a run's rounds: banded, or with buffers (BLT)
memory.py     the noise of earlier rounds, for correlated noise

Imports `seeding` and `tensors` only. Start with `release_`.
"""
