"""Preparation: steps between a source and a store that clean records and count dropped ones.

`step.py` has the base class; `prepare.py` lists the steps by name and runs a chain of them. To add
a step, write a class in the file of its subject (`users.py`, `texts.py`, `times.py`, `emails.py`)
and add it to that list.
"""
