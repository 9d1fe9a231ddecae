"""Runs that are killed and resumed again and again."""
