"""The token store: a folder in which the examples of a user are found in O(1).

Start at `token_store.py`. `fedsim.data.building` makes stores.
"""

from fedsim.data.store.token_store import Indices, TokenStore, ranks, runs

__all__ = ["Indices", "TokenStore", "ranks", "runs"]
