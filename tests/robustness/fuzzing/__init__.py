"""Hostile input for every reader of files."""
