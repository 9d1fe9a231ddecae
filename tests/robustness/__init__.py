"""Runs that are killed, disks that are full, damaged files, broken gradients.

`FEDSIM_TEST_KILLS=100 pytest tests/robustness` kills that often at random moments.
`python -m tests.robustness.architectures` tries every causal architecture of transformers.
"""
