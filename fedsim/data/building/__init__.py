"""Build a token store by streaming, in bounded memory.

Start with `build.py`.
"""
