"""Sketches: one bit for each rotated dimension of a key, from which q . k is estimated (RaBitQ)."""

from .api import SketchScratch, best_sketched, mean_keys, sketch_keys
from .search import Rotation, sketch_bits

__all__ = ["Rotation", "SketchScratch", "best_sketched", "mean_keys", "sketch_bits", "sketch_keys"]
