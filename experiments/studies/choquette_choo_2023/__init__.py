"""Mechanisms of a whole run: balanced sampling, and noise that later rounds partly cancel.

Choquette-Choo et al. 2023, arXiv:2306.08153. Start with `mechanisms.py`.
"""
