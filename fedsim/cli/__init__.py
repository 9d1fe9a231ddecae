"""The command line: a file for each command; start at `main.py`.

Commands import what they need when they are called, so that `fedsim --help` is quick.
"""
