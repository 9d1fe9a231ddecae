"""One run, from its config to its report.

Start at `session.py`: it builds the plan, trains, saves and reports. `launch.py` opens the grid
that the run's `server_app.py` is carried out on.
"""
