"""Benchmarks: how long something takes here, beside what others' code takes on the same machine."""
