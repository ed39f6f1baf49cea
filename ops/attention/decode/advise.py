"""Requests for the tiles of listed tokens, see `read_ahead`."""

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
    """The first page that begins at `place` or after it. A division would take 8 ns."""
    return (place + (1 << bits) - 1) >> bits


@jit
def _miss(pages, segment, first, last):
    """Whether one of pages first … last - 1 of a segment is missing; they count as asked for."""
    found = False
    for page in range(first, last):
        if not pages[segment, page]:
            pages[segment, page] = 1
            found = True
    return found


@kernel
def advise_kernel(share: Share, wanted: ReadAhead, mapped: MappedTiles):
    """Request the pages of the tiles that are not in memory, those near each other at once;
    requests[0] = how often."""
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
                if not _miss(wanted.pages, segment, tile >> bits, stop):
                    continue
            tile += wanted.segments[segment]
            first = tile >> bits << bits
            last = _page_after(tile + mapped.tile_bytes, bits) << bits
            if not begin <= first <= end + mapped.gap_bytes:
                if end:
                    _madvise(begin, np.uint64(end - begin), _WILLNEED)
                    requests[0] += 1
                begin = first
            end = last
        if end:
            _madvise(begin, np.uint64(end - begin), _WILLNEED)
            requests[0] += 1
