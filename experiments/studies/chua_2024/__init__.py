"""Studies of Chua et al. 2024: user-level privacy for fine-tuning language models.

`asi_liu` is the strategy of their Algorithm 3.
"""
