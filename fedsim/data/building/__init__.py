"""Building a token store: streaming, by several processes, in bounded memory, resumable.

Start at `build.py`.
"""
