"""Kills, full disks, dirty gradients, hostile files and long runs: `python -m tests.robustness`."""
