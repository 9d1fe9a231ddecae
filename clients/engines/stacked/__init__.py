"""Engine `stacked`: local training of many users side by side, on a stack of their parameters.

forward.py  layers over a stack of parameters, one set of weights for each user
steps.py    a step of gradient descent of all users of a stack
engine.py   users take places in a stack, step, and leave it for the clipped sum
"""
