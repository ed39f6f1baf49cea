"""Hash tables of keys, from which queries draw tokens at random (LSH sampling, MagicPIG)."""

from .api import DrawScratch, TableStore, draw, hash_keys, sort_runs
from .planes import RUN, Hashing, Tables, log_weight_table, table_planes

__all__ = [
    "RUN",
    "DrawScratch",
    "Hashing",
    "TableStore",
    "Tables",
    "draw",
    "hash_keys",
    "log_weight_table",
    "sort_runs",
    "table_planes",
]
