"""Sketches: one bit per rotated dimension of a key, from which q . k is estimated."""

from .api import Rotation, SketchScratch, best_sketched, sketch_bits, sketch_keys

__all__ = ["Rotation", "SketchScratch", "best_sketched", "sketch_bits", "sketch_keys"]
