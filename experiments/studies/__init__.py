"""The paper studies: each recomputes a figure, a table or a claim, and writes what it found."""
