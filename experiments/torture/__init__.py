"""Torture: kills, faults, dirty gradients, hostile files and long runs, and what was lost."""
