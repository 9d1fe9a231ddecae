"""A Flower app of the quickstart's shape, made private by its strategy alone."""
