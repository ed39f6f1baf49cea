"""Indexes of the stored keys by their products with a query, for `topk`."""

from .blocks import BlockIndex as BlockIndex
from .flat import FlatIndex as FlatIndex
from .means import MeansIndex as MeansIndex
from .sampled import SampledIndex as SampledIndex
from .sketches import SketchIndex as SketchIndex
