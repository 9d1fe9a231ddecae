"""Clients: the tasks that a unit computes, the models, and the gradient engines.

tasks/      from a unit's examples to its update: mean gradient, local training, one example
models/     networks as values: parameters in, logits out
engines/    the clipped, weighted sum of many units' updates

app.py              the Flower ClientApp: a shard of units in, one weighted sum out
engine_choice.py    the engine of a config: by name, or by model, units and memory
personalisation.py  local epochs on a user's own examples, for evaluation

Imports `fedsim`, never `strategies`.
"""
