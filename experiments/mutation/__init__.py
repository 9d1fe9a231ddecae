"""Do the tests see what would break the guarantee: protections taken away, and mutants."""
