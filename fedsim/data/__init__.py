"""Data: texts by user, tokenised once, read by user without a copy.

sources.py, shakespeare.py   where (user, text) records come from
arrivals.py, workers.py      records to pieces of token ids, in several processes
segments.py, merge.py        pieces to segments sorted by user, segments to the files of a store
workshop.py, build.py        the hidden folder where that happens, and all of it in order
manifest.py, integrity.py    what a store says of itself, and whether its files still agree
store.py                     reading it
split.py                     who and what is held out
hashing.py, selection.py     which of a user's examples take part
cohorts.py                   what a cohort brings, as one block
"""
