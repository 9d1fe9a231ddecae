"""Preparation: counted steps between a source and a store.

`step.py` says what a step is; `prepare.py` lists the steps by name and runs a chain of them. A new
step is a class in the file of what it looks at and a line in that list: `users.py` merges names of
one person (`merge-users`) and drops users; `emails.py` finds
owners and removes quoted replies.
"""
