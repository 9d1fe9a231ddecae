"""The accountants: from rounds to (ε, δ).

accountant.py     the base class
pld.py            privacy loss distributions (PLDs), on a grid that is refined as needed
mixture_pld.py    the PLD of one round
composition.py    the sum of the losses of all rounds
random_allocation.py, renyi.py, group_privacy.py   the other accountants

Start with pld.py. Other packages use `fedsim.accounting.accountants`, which loads them by name.
"""
