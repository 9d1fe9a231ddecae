"""Benchmarks: time and memory on this machine, beside others' code on the same machine.

A benchmark is a function `run()` registered under `fedsim.benchmarks` that returns rows; `page.py`
makes docs/benchmarks.md of them.
"""
