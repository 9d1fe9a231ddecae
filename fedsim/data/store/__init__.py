"""The token store: a folder with O(1) access to the examples of a user.

Start with `token_store.py`. `fedsim.data.building` builds stores.
"""

from fedsim.data.store.owner_graph import OwnerGraph
from fedsim.data.store.rows import Indices, ranks, runs
from fedsim.data.store.token_store import TokenStore

__all__ = ["Indices", "OwnerGraph", "TokenStore", "ranks", "runs"]
