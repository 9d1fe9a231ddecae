"""A Flower app like the quickstart; only its strategy makes it private."""
