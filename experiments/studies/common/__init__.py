"""What studies share: output files, intervals over seeds, grids that train."""
