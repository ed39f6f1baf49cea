"""Requests for the tiles of listed tokens, see `read_ahead`."""

import numpy as np
from numba import types

from ....jit.launch.define import Share, kernel
from ..arguments import MappedTiles, ReadAhead
from ..layout import SEGMENT, TILE

_WILLNEED = 3  # MADV_WILLNEED of every Linux
_madvise = types.ExternalFunction("madvise", types.int32(types.intp, types.uintp, types.int32))


@kernel
def advise_kernel(share: Share, wanted: ReadAhead, mapped: MappedTiles):
    """Request the pages of the tiles, those near each other at once; requests[0] = how often."""
    page, requests = mapped.page_bytes, wanted.requests
    requests[0] = 0
    for j in range(len(wanted.counts)):
        begin = end = np.int64(0)
        for i in range(wanted.counts[j]):
            token = wanted.lists[j, i]
            segment, place = token // SEGMENT, token % SEGMENT
            if segment >= mapped.n_segments:
                break
            tile = wanted.segments[segment] + j * mapped.head_bytes
            tile += place // TILE * mapped.tile_bytes
            first, last = tile // page * page, (tile + mapped.tile_bytes + page - 1) // page * page
            if not begin <= first <= end + mapped.gap_bytes:
                if end:
                    _madvise(begin, np.uint64(end - begin), _WILLNEED)
                    requests[0] += 1
                begin = first
            end = last
        if end:
            _madvise(begin, np.uint64(end - begin), _WILLNEED)
            requests[0] += 1
