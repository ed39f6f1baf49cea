"""Asking the system for the tiles of listed tokens before they are read from a mapped file.

A page that is not in memory is read when it is touched, one at a time and while a thread waits.
What is asked for comes with as many reads under way as the medium takes.
"""

import mmap
import sys

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...cache import jit
from ...errors import OpsError
from ..layout import SEGMENT, TILE, TileLayout

CAN_ASK = sys.platform == "linux"
_WILLNEED = 3  # MADV_WILLNEED of every Linux
_GAP = 4 * mmap.PAGESIZE  # bytes that are sooner read than asked for apart
_madvise = types.ExternalFunction("madvise", types.int32(types.intp, types.uintp, types.int32))


@jit
def _read_ahead_kernel(index, counts, segments, n_mapped, head_bytes, tile_bytes, page, gap):
    """Asks for the pages of the tiles, those near each other at once; gives how often."""
    n = 0
    for j in range(len(counts)):
        begin = end = np.int64(0)
        for i in range(counts[j]):
            segment, place = index[j, i] // SEGMENT, index[j, i] % SEGMENT
            if segment >= n_mapped:
                break
            tile = segments[segment] + j * head_bytes + place // TILE * tile_bytes
            first, last = tile // page * page, (tile + tile_bytes + page - 1) // page * page
            if not begin <= first <= end + gap:
                if end:
                    _madvise(begin, np.uint64(end - begin), _WILLNEED)
                    n += 1
                begin = first
            end = last
        if end:
            _madvise(begin, np.uint64(end - begin), _WILLNEED)
            n += 1
    return n


def read_ahead(
    index: NDArray[np.uint32],
    counts: NDArray[np.int64],
    segments: NDArray[np.int64],
    n_mapped: int,
    layout: TileLayout,
) -> int:
    """Have the system read the tiles of listed tokens, without waiting; gives how often it asked.

    index uint32 (J, room), ascending, counts int64 (J,): as `gathered_attention` reads them; of the
    first n_mapped segments only, which lie in mapped files. Costs about a microsecond a request,
    also for what is in memory. Raises OpsError where there are not so many segments, and on systems
    that cannot be asked (`CAN_ASK`).
    """
    if not CAN_ASK:
        raise OpsError("read ahead: this system cannot be asked to")
    if not 0 <= n_mapped <= len(segments) or counts.shape != index.shape[:1]:
        raise OpsError(
            f"read ahead: {n_mapped} of {len(segments)} segments, lists {index.shape} with "
            f"{counts.shape} lengths"
        )
    asked = _read_ahead_kernel(
        index, counts, segments, n_mapped, layout.head_bytes, layout.tile_bytes, mmap.PAGESIZE, _GAP
    )  # fmt: skip
    return int(asked)
