"""What is added to an estimate: Gaussian noise, alone or correlated over rounds, and a tolerance.

gaussian.py   `release_`: noise addressed by parameter and position, rounded to a grid
tolerance.py  how much larger than the clip's bound the noise takes it, for floating point
matrix.py     matrices that correlate noise over a run's rounds: banded, and by a few buffers (BLT)
memory.py     the noise of earlier rounds, from which the next one's is made

Imports `seeding` and `tensors` only. Start with `release_`.
"""
