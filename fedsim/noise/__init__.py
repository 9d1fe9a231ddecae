"""What is added to an estimate: Gaussian noise, alone or correlated over rounds, and a margin.

gaussian.py   `release_`: noise addressed by parameter and position, rounded to a grid
rounding.py   how far rounding lets one unit move a sum: what the noise is scaled to beyond the clip
matrix.py     matrices that correlate noise over a run's rounds: banded, and by a few buffers (BLT)
memory.py     the noise of earlier rounds, from which the next one's is made

Imports `seeding` and `tensors` only. Start with `release_`.
"""
