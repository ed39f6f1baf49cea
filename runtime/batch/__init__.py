"""Several contexts that compute in one pass: `Batch.decode_together`."""

from .batch import Batch as Batch
from .errors import NotSaved as NotSaved
