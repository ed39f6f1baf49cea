"""Sketches on a GPU: one bit for each rotated dimension of a key, and choosing by estimates."""

from .choice import SketchScratch as SketchScratch
from .choice import best_sketched as best_sketched
from .keys import Frames as Frames
from .keys import Rotation as Rotation
from .keys import key_moments as key_moments
from .keys import sketch_keys as sketch_keys
