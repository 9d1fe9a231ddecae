"""Studies of Charles et al. 2024: ELS and ULS at equal compute and privacy."""
