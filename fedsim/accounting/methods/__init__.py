"""The accountants' methods: from rounds to (ε, δ).

pld.py            privacy loss distributions on a grid that is refined as needed; of one round:
                  mixture_pld.py
composition.py    the sum of the losses of all rounds
accountant.py      what each of them is
random_allocation.py, renyi.py, group_privacy.py   the other accountants

Start with pld.py. `fedsim.accounting.accountants` knows them by name, and is what others ask.
"""
