"""One run, from its config to its report.

Start at `session.py`: it builds the plan, writes the charges of rounds down before they are used,
charges shared ledgers, saves and reports; `training.py` is the loop over rounds. `folder.py` writes
a run down and takes it up again (`take_up`, for `--resume`), from the newest whole checkpoint
(`checkpoint.py`); which rounds are repeated, and by which draws, is the session's (`_going_on`).
`shared_ledger.py` keeps a budget that several runs share. `launch.py` starts a run from Python or
the command line, `server_app.py` from `flwr run`. Imports everything below; `sweep` imports it.
"""
