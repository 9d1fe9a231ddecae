"""Data: texts by user, tokenised once, read by user without a copy.

sources/        the files and built-in plays that records come from
preparation/    steps that clean records before a store is made; `catalogue.py` lists them
reading.py      the records that a config asks for: a source, through its steps
building/       records to a token store, in bounded memory, resumable
store/          the store's files, read by memory map
keys.py         who a user is and what an example is, as numbers
split.py        which users and examples are held out
selection.py    which of a user's examples take part in a round
cohorts.py      a cohort's examples as one block of tokens
canaries.py     planted users, for attacks and audits

`config.py` has the keys of `[data]`. Imports `fedsim.utils` and the mechanism's `seeding`.
"""
