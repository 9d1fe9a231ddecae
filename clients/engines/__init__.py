"""Gradient engines: units and a clip in, one weighted sum out."""
