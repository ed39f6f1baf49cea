"""Requests for the tiles of listed tokens, see `read_ahead`."""

import numpy as np
from numba import types

from ....jit.launch.legacy_define import lent, step
from ..layout import SEGMENT, TILE
from .tables import READ_AHEAD

_WILLNEED = 3  # MADV_WILLNEED of every Linux
_madvise = types.ExternalFunction("madvise", types.int32(types.intp, types.uintp, types.int32))


@step("iiiiii")
def ask_kernel(part, parts, ticket, arrays, n_mapped, head_bytes, tile_bytes, page, gap):
    """Asks for the pages of the tiles, those near each other at once; asked[0] = how often."""
    index, counts, segments, asked = lent(arrays, READ_AHEAD)
    asked[0] = 0
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
                    asked[0] += 1
                begin = first
            end = last
        if end:
            _madvise(begin, np.uint64(end - begin), _WILLNEED)
            asked[0] += 1
