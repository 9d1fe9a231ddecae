"""Strategies: what a round releases and costs. Builders of plans, nothing else."""
