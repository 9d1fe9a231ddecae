"""An extension of fedsim: a strategy, a model and a tracker, reached through entry points."""
