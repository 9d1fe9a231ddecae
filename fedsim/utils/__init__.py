"""Files, locks, JSON, the machine: what has nothing to do with privacy.

Imports nothing of fedsim but `fedsim.errors`.
"""
