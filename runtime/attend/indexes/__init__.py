"""Indexes of the stored keys: by their products with a query (`topk`), or to draw from."""

from .flat import FlatIndex as FlatIndex
from .means import MeansIndex as MeansIndex
from .sketches import SketchIndex as SketchIndex
from .sketches import SlotSketches as SlotSketches
from .tables import TableIndex as TableIndex
