"""Sketches: one bit for each rotated dimension of a key, from which q . k is estimated (RaBitQ)."""

from .api import SketchScratch, best_sketched, mean_keys, sketch_keys, sketch_slots
from .rows_api import RowSketchScratch, best_sketched_rows
from .search import Rotation, SketchedKeys, sketch_bits

__all__ = [
    "Rotation",
    "RowSketchScratch",
    "SketchScratch",
    "SketchedKeys",
    "best_sketched",
    "best_sketched_rows",
    "mean_keys",
    "sketch_bits",
    "sketch_keys",
    "sketch_slots",
]
