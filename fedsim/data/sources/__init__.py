"""Sources: records of text by user, from files or from the built-in plays.

Start with `records.py`. `fedsim/data/rows.py` reads the rows of a config's source.
"""
