"""Code shared by studies: output files, figures, intervals, grids that train."""
