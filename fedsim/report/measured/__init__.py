"""Measured grids: a line for each setting, with an interval over its seeds.

Start at `lines.py`.
"""
