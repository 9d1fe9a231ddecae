"""Sources: records of text by user, from files or from the built-in plays.

Start at `rows.py`. What a config asks for is opened by `fedsim/data/reading.py`.
"""
