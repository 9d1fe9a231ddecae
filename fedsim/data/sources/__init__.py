"""Sources: records of text by user, from files or from the built-in plays.

Start with `rows.py`. `fedsim/data/reading.py` opens the source of a config.
"""
