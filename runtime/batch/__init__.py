"""Several contexts that compute in one pass: `Batch.decode_together`."""

from .batch import Batch as Batch
from .batch import NotSaved as NotSaved
