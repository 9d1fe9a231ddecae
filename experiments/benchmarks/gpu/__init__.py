"""All that is asked of a GPU, in one command. Start at `__main__.py`."""
