"""Data: texts by user, from the source to tokenised examples by user.

sources/        read records from files and built-in plays
preparation/    steps that clean records before a store is built; `prepare.py` lists them
building/       build a token store from records, in bounded memory
store/          the store's files, memory-mapped; keys of users and examples
rows.py         the rows of a config's source
reading.py      the prepared records and the store of a config
split.py        choose held-out users and examples
selection.py    choose each user's examples of a round; a cohort's block of tokens
bounding.py     choose examples of texts with several owners
canaries.py     planted users, for attacks and audits

`config.py` has the keys of `[data]` and the recipes. Imports `fedsim.utils` and the mechanism's
`seeding`.
"""
