"""One run, from its config to its report.

launch.py         starts a run from Python or the command line, on the grid of its config
session.py        start here: `execute`, then the session from top to bottom
training.py       the loop over rounds, within the budget
folder.py         the files of a run, and how to resume it; identity.py: its run.json
checkpoint.py     server states on disk; the newest readable one
shared_ledger.py  a budget that several runs share
saved_model.py    the trained model, and a check that the saved one computes the same
summary.py        the report of a run; progress.py and log.py show its progress
finished.py       a finished run in Python; detailed_evaluation.py scores it; push.py uploads it
given.py          writes data or a network from memory to files
server_app.py     the run of `flwr run`

Imports everything below; `sweep` imports it.
"""
