"""Data: texts by user, from the source to tokenised examples that are read by user.

sources/        the files and built-in plays that records come from
preparation/    steps that clean records before a store is made; `prepare.py` lists them
building/       records to a token store, in bounded memory
store/          the store's files, read by memory map; keys of users and examples
reading.py      the records and the store of a config
split.py        which users and examples are held out
selection.py    which of a user's examples take part in a round; a cohort's block of tokens
bounding.py     which examples take part where texts have several owners
canaries.py     planted users, for attacks and audits

`config.py` has the keys of `[data]` and the recipes. Imports `fedsim.utils` and the mechanism's
`seeding`.
"""
