"""Data: texts by user, tokenised once, read by user without a copy.

sources.py, shakespeare.py   where (user, text) records come from
arrivals.py, build.py        records to a token store on disk
store.py                     reading it
split.py                     who and what is held out
selection.py                 which of a user's examples take part
"""
