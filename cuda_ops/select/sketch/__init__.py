"""Sketches on a GPU: one bit for each rotated dimension of a key, and choosing by estimates."""

from .choice import SketchScratch as SketchScratch
from .choice import best_sketched as best_sketched
from .keys import Rotation as Rotation
from .keys import mean_keys as mean_keys
from .keys import sketch_keys as sketch_keys
