"""The server's step under noise.

De et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification through Scale",
arXiv:2204.13650. `server_step.py`, runs in `server_step_runs.py`.
"""
