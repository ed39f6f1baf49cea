"""Layers that carry a state from token to token: gated delta rule, selective scan, short
convolution (`api`).

Every result, the state's included, is the same for any number of threads, and however a text is cut
into calls: tokens that are read one by one give the bits of all at once.
"""

from .layout import DeltaHeads as DeltaHeads
from .scan_layout import ScanHeads as ScanHeads
