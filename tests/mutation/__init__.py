"""Protections taken away one by one, and mutants: does a test fail for each?

`python -m tests.mutation pitfalls` reads `pitfalls.toml`.
"""
