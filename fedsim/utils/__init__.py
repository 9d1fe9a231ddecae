"""Utilities without relation to privacy: files, locks, JSON, the machine.

From fedsim they import only `fedsim.errors`.
"""
