"""Hash tables of keys, from which queries draw tokens at random (LSH sampling, MagicPIG)."""

from .api import DrawScratch, TableStore, draw, hash_keys
from .planes import Hashing, Tables, log_weight_table, table_planes

__all__ = [
    "DrawScratch",
    "Hashing",
    "TableStore",
    "Tables",
    "draw",
    "hash_keys",
    "log_weight_table",
    "table_planes",
]
