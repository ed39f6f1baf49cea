"""Sketches on a GPU: one bit for each rotated dimension of a key, and choosing by estimates."""

from .choice import SketchedKeys, SketchScratch, best_sketched
from .keys import KeyScratch, Rotation, mean_keys, sketch_keys

__all__ = [
    "KeyScratch",
    "Rotation",
    "SketchScratch",
    "SketchedKeys",
    "best_sketched",
    "mean_keys",
    "sketch_keys",
]
