"""Other people's packages on the same work, in a Python environment of their own."""
