"""Requesting the tiles of listed tokens from the system before a mapped file is read.

A page that is not in memory is read when it is touched: one at a time, and a thread waits for it.
Of pages that were requested, the system reads as many at a time as the disk can.
"""

import mmap
import sys

import numpy as np
from numpy.typing import NDArray

from ....jit.launch import Arguments, DefinedKernel, lazy_kernel
from ...errors import OpsError
from ..arguments import MappedTiles, ReadAhead
from ..layout import TileLayout

CAN_READ_AHEAD = sys.platform == "linux"
_GAP = 4 * mmap.PAGESIZE  # bytes that are read faster than requested separately

_wanted, _requests = Arguments(ReadAhead), np.zeros(1, np.int64)


@lazy_kernel
def _advise() -> DefinedKernel:
    from .advise import advise_kernel

    return advise_kernel


def read_ahead(
    lists: NDArray[np.uint32],
    counts: NDArray[np.int64],
    segments: NDArray[np.int64],
    n_mapped: int,
    layout: TileLayout,
) -> int:
    """Request the tiles of listed tokens, without waiting for them; gives the number of requests.

    lists uint32 (J, room), ascending, counts int64 (J,): as `gathered_attention` reads them; of the
    first n_mapped segments only, which lie in mapped files. Costs about a microsecond a request,
    also for what is in memory. Raises OpsError where there are not so many segments, and on systems
    other than Linux (`CAN_READ_AHEAD`).
    """
    if not CAN_READ_AHEAD:
        raise OpsError(f"read ahead: this is {sys.platform}, expected Linux")
    if not 0 <= n_mapped <= len(segments) or counts.shape != lists.shape[:1]:
        raise OpsError(
            f"read ahead: {n_mapped} of {len(segments)} segments, lists {lists.shape} with "
            f"{counts.shape} lengths"
        )
    wanted = ReadAhead(lists=lists, counts=counts, segments=segments, requests=_requests)
    mapped = MappedTiles(n_mapped, layout.head_bytes, layout.tile_bytes, mmap.PAGESIZE, _GAP)
    _advise(_wanted.fill(wanted), *mapped, parallel=False)
    return int(_requests[0])
