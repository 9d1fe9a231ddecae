"""Black-box audits: lower bounds on ε from the losses of one final model, by two one-run methods.

Mahloujifar et al. 2025, arXiv:2410.22235. Start with `black_box.py`.
"""
