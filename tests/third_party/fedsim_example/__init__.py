"""An extension of fedsim: parts of rounds, a model and a tracker, reached through entry points."""
