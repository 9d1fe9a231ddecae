"""Grids: where messages meet clients. The only place that touches the inside of Flower."""
