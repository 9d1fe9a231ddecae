"""Building a token store: streaming, by several processes, in bounded memory.

Start at `build.py`.
"""
