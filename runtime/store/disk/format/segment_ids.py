"""The token ids of full segments: once in memory for all contexts of the process.

A number takes 32 bytes, which each context would have for each token of its packs.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np


class SegmentIds:
    """The ids of a full segment, as 1,024 x u32 (`data`) and as numbers."""

    __slots__ = ("__weakref__", "data", "ids")

    def __init__(self, data: bytes) -> None:
        self.data, self.ids = data, tuple(np.frombuffer(data, "<u4").tolist())


_known: weakref.WeakValueDictionary[bytes, SegmentIds] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_ids(data: bytes) -> SegmentIds:
    """The ids of a full segment, given as 1,024 x u32."""
    with _lock:
        ids = _known.get(data)
        if ids is None:
            _known[data] = ids = SegmentIds(data)
        return ids
