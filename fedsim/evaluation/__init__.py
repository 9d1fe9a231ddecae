"""Utility of a model on text: losses, accuracy, perplexity, generated samples.

Start at `metrics.py`. ε covers only the scores of `private_scores.py`.
"""
