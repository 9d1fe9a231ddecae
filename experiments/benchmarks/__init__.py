"""Benchmarks: time and memory of fedsim and of other packages on this machine.

A benchmark is a function `run()` registered under `fedsim.benchmarks` that returns rows; `page.py`
makes docs/benchmarks.md of them.
"""
