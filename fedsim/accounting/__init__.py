"""Accounting: what a round costs, what a run has spent, what noise a budget asks for."""
