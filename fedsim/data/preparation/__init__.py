"""Preparation: counted steps between a source and a store.

`step.py` says what a step is; `prepare.py` lists the steps by name and runs a chain of them. A new
step is a class in the file of what it looks at (texts, users, urls, emails, times, duplicates) and
a line in that list.
"""
