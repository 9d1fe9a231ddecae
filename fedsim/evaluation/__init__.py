"""Utility of a model on text: losses, accuracy, perplexity, generated samples.

Start at `metrics.py`. No ε covers what is computed here, but for `private_scores.py`.
"""
