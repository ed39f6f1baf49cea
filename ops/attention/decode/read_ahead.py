"""Requests the tiles of listed tokens from the system, before kernels read a mapped file.

The system reads a missing page when a thread touches it: one at a time, while the thread waits. It
reads requested pages as many at a time as the disk can.
"""

import ctypes
import mmap
import os
import sys
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ....jit.launch import Arguments, DefinedKernel, lazy_kernel
from ...errors import OpsError
from ..arguments import MappedTiles, ReadAhead
from ..layout import TileLayout

CAN_READ_AHEAD = sys.platform == "linux"
_GAP = 4 * mmap.PAGESIZE  # to read these bytes is faster than a second request

_PAGE_BITS = mmap.PAGESIZE.bit_length() - 1
_SLOT_GAP = 1 << 16  # bytes
NOTHING_KNOWN = np.empty((0, 0), np.uint8)

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
    pages: NDArray[np.uint8] = NOTHING_KNOWN,
) -> int:
    """Request the tiles of listed tokens without waiting for them. Returns the number of requests.

    lists uint32 (J, room), ascending, counts int64 (J,): as for `gathered_attention`. Requests only
    tiles of the first n_mapped segments, which lie in mapped files. A request costs about a
    microsecond, also for pages in memory: with `pages`, from `pages_in_memory`, it leaves out pages
    that are in memory and marks those that it requests. Raises OpsError where there are fewer
    segments, and on systems other than Linux (`CAN_READ_AHEAD`).
    """
    _check_system()
    if not 0 <= n_mapped <= len(segments) or counts.shape != lists.shape[:1]:
        raise OpsError(
            f"read ahead: {n_mapped} of {len(segments)} segments, lists {lists.shape} with "
            f"{counts.shape} lengths"
        )
    n_pages = _n_pages(layout, len(lists))
    if pages.size and pages.shape != (n_mapped, n_pages):
        raise OpsError(f"read ahead: pages are {pages.shape}, expected {(n_mapped, n_pages)}")
    wanted = ReadAhead(
        lists=lists, counts=counts, segments=segments, pages=pages, requests=_requests
    )
    mapped = MappedTiles(n_mapped, layout.head_bytes, layout.tile_bytes, _PAGE_BITS, _GAP)
    _advise(_wanted.fill(wanted), *mapped, parallel=False)
    return int(_requests[0])


def pages_in_memory(
    segments: NDArray[np.int64], n_mapped: int, layout: TileLayout, n_kv_heads: int
) -> NDArray[np.uint8]:
    """The pages of the first n_mapped segments that are in memory: uint8 (n_mapped, pages), 1 or 0.

    Costs 2.5 ns for a page that this process has touched, 75 for others (Zen 3, Linux 6.18). Linux
    answers only for files that the process owns or may write; for others it says that all pages are
    in memory. Segments begin at pages, and a gap of less than 64 KiB between two is mapped, too.
    Raises OpsError where segments are not mapped, and on systems other than Linux.
    """
    _check_system()
    n_pages, page = _n_pages(layout, n_kv_heads), mmap.PAGESIZE
    pages = np.empty((n_mapped, n_pages), np.uint8)
    gaps = np.diff(segments[:n_mapped]) - n_pages * page
    breaks = np.flatnonzero((gaps < 0) | (gaps >= _SLOT_GAP) | (gaps % page != 0)) + 1
    for run in np.split(np.arange(n_mapped), breaks):
        if len(run):
            # All slots of a file have the same distance.
            stride = n_pages + int(gaps[run[0]]) // page if len(run) > 1 else n_pages
            vector = np.zeros((len(run), stride), np.uint8)
            n_bytes = ((len(run) - 1) * stride + n_pages) * page
            _mincore(int(segments[run[0]]), n_bytes, vector)
            pages[run[0] : run[-1] + 1] = vector[:, :n_pages] & 1
    return pages


def _n_pages(layout: TileLayout, n_kv_heads: int) -> int:
    return -(-layout.segment_bytes(n_kv_heads) // mmap.PAGESIZE)


def _mincore(address: int, n_bytes: int, vector: NDArray[np.uint8]) -> None:
    failed = _libc().mincore(
        ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), ctypes.c_void_p(vector.ctypes.data)
    )
    if failed:
        raise OpsError(f"pages in memory: {os.strerror(ctypes.get_errno())}")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check_system() -> None:
    if not CAN_READ_AHEAD:
        raise OpsError(f"read ahead: this is {sys.platform}, expected Linux")
