"""The token store: a folder in which the examples of a user are found in O(1).

Start at `token_store.py`. `fedsim.data.building` makes stores.
"""

from fedsim.data.store.owner_graph import OwnerGraph
from fedsim.data.store.rows import Indices, ranks, runs
from fedsim.data.store.token_store import TokenStore

__all__ = ["Indices", "OwnerGraph", "TokenStore", "ranks", "runs"]
