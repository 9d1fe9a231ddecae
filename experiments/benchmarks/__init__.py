"""Benchmarks: time and memory of fedsim and of peer packages on this machine.

A benchmark is a function `run()` that returns rows, registered as entry point `fedsim.benchmarks`.
`page.py` writes docs/benchmarks.md from the rows.
"""
