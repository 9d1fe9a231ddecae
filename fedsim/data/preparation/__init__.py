"""Preparation: counted steps between a source and a store.

`step.py` says what a step is, `catalogue.py` lists the steps by name, `prepare.py` runs a chain of
them. A new step is a class in the file of what it looks at (texts, users, urls, emails, times,
duplicates) and a line in the catalogue.
"""
