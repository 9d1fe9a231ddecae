"""NaN, infinities, huge and tiny numbers through every path that adds to a sum."""
