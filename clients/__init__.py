"""Clients: what a unit computes, with which model, and by which engine.

tasks/      from a unit's examples to its update: mean gradient, local training, one example
models/     networks as values: parameters in, logits out
engines/    many units' updates, clipped and summed
app.py      the Flower ClientApp: a shard of units in, one weighted sum out

Imports `fedsim`, never `strategies`.
"""
