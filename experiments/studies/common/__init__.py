"""Shared by studies: output files, figures, intervals, grids that train."""
