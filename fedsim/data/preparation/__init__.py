"""Preparation: counted steps between a source and a store.

step.py, catalogue.py   what a step is, and the steps by name
prepare.py              the chain of steps, its fingerprint, what the report has to say of it
spool.py                records on disk, for the steps that read them twice
"""
