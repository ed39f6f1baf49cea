"""Asking the system for the tiles of listed tokens before they are read from a mapped file.

A page that is not in memory is read when it is touched, one at a time and while a thread waits.
What is asked for comes with as many reads under way as the medium takes.
"""

import mmap
import sys

import numpy as np
from numpy.typing import NDArray

from ....jit.launch import Table, kernel
from ...errors import OpsError
from ..layout import TileLayout
from .tables import READ_AHEAD

CAN_ASK = sys.platform == "linux"
_GAP = 4 * mmap.PAGESIZE  # bytes that are sooner read than asked for apart

_ask = kernel(f"{__package__}.ask", "ask_kernel")
_arrays, _asked = Table(READ_AHEAD), np.zeros(1, np.int64)


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
    arrays = _arrays(index, counts, segments, _asked)
    head, tile = layout.head_bytes, layout.tile_bytes
    _ask(arrays, n_mapped, head, tile, mmap.PAGESIZE, _GAP, parallel=False)
    return int(_asked[0])
