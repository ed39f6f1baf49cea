"""The kernel that requests the tiles of listed tokens, see `read_ahead`."""

import numpy as np
from numba import types

from ....jit.cached import jit
from ....jit.launch.define import Share, kernel
from ..arguments import MappedTiles, ReadAhead
from ..layout import SEGMENT, TILE

_WILLNEED = 3  # MADV_WILLNEED of every Linux
_madvise = types.ExternalFunction("madvise", types.int32(types.intp, types.uintp, types.int32))


@jit
def _page_after(place, bits):
    """The first page that begins at `place` or later. A division would take 8 ns."""
    return (place + (1 << bits) - 1) >> bits


@jit
def _mark(pages, segment, first, stop):
    """Mark pages first … stop - 1 of a segment as requested. Returns whether any was not marked."""
    is_missing = False
    for page in range(first, stop):
        if not pages[segment, page]:
            pages[segment, page] = 1
            is_missing = True
    return is_missing


@kernel
def advise_kernel(share: Share, wanted: ReadAhead, mapped: MappedTiles):
    """Request the pages of tiles that are not in memory, near ones together; requests[0] = the
    number of requests."""
    bits, requests = mapped.page_bits, wanted.requests
    requests[0] = 0
    for j in range(len(wanted.counts)):
        begin = end = np.int64(0)
        for i in range(wanted.counts[j]):
            token = wanted.lists[j, i]
            segment, place = token // SEGMENT, token % SEGMENT
            if segment >= mapped.n_segments:
                break
            tile = j * mapped.head_bytes + place // TILE * mapped.tile_bytes
            if len(wanted.pages):
                stop = _page_after(tile + mapped.tile_bytes, bits)
                if not _mark(wanted.pages, segment, tile >> bits, stop):
                    continue
            tile += wanted.segments[segment]
            first = tile >> bits << bits
            stop = _page_after(tile + mapped.tile_bytes, bits) << bits
            if not begin <= first <= end + mapped.gap_bytes:
                if end:
                    _madvise(begin, np.uint64(end - begin), _WILLNEED)
                    requests[0] += 1
                begin = first
            end = stop
        if end:
            _madvise(begin, np.uint64(end - begin), _WILLNEED)
            requests[0] += 1
