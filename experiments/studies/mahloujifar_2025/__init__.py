"""Black-box audits: what losses of one final model prove, by two one-run bounds.

Mahloujifar et al. 2025, arXiv:2410.22235. Start with `black_box.py`.
"""
