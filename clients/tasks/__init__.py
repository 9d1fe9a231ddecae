"""Tasks: what a unit computes, from its examples to its update.

A task is registered as an entry point `fedsim.tasks`; start at `fedsgd.py`. Plug-ins with their own
task build on the two names below.
"""

from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.clients.tasks.user_examples import UserTask

__all__ = ["UserTask", "mean_gradient"]
