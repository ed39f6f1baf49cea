"""Requested tiles come into memory by themselves, and no others."""

import mmap
import time
from pathlib import Path

import numpy as np
import pytest

from kvarn.ops.attention.decode.read_ahead import (
    CAN_READ_AHEAD,
    pages_in_memory,
    read_ahead,
)
from kvarn.ops.attention.layout import SEGMENT, TILE, TileLayout
from kvarn.ops.errors import OpsError
from kvarn.runtime.bench import page_cache

LAYOUT, HEADS, SEGMENTS = TileLayout(64, "f16", "f16"), 2, 4  # a tile is a page of 4 KiB

pytestmark = pytest.mark.skipif(not CAN_READ_AHEAD, reason="madvise is called on Linux only")


@pytest.fixture
def mapped(tmp_path: Path) -> tuple[Path, np.ndarray, mmap.mmap]:
    """A file of segments, none of it in memory, and their addresses."""
    path, n_bytes = tmp_path / "layer", LAYOUT.segment_bytes(HEADS)
    with path.open("wb") as file:
        file.write(bytes(SEGMENTS * n_bytes))
        file.flush()
        page_cache.os.fsync(file.fileno())
    page_cache.forget([path])
    if page_cache.resident_bytes([path]):
        pytest.skip(f"{tmp_path} is in memory")
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    base = np.frombuffer(mapping, np.uint8).ctypes.data
    return path, base + n_bytes * np.arange(SEGMENTS), mapping


def _lists(*heads: list[int]) -> tuple[np.ndarray, np.ndarray]:
    index = np.zeros((len(heads), 64), np.uint32)
    for row, tokens in zip(index, heads, strict=True):
        row[: len(tokens)] = tokens
    return index, np.array([len(tokens) for tokens in heads])


def test_what_is_asked_for_comes(mapped) -> None:  # type: ignore[no-untyped-def]
    path, segments, _ = mapped
    # Head 0: a tile, the one behind it, one far away; head 1: one in another segment.
    index, counts = _lists([0, 3, TILE, 40 * TILE], [SEGMENT + 5])
    assert read_ahead(index, counts, segments, SEGMENTS, LAYOUT) == 3
    expected, began = 4 * LAYOUT.tile_bytes, time.monotonic()
    while page_cache.resident_bytes([path]) < expected and time.monotonic() < began + 20:
        time.sleep(0.01)
    assert page_cache.resident_bytes([path]) == expected


def _settled(path: Path) -> int:
    """Bytes of the file in memory, once a tenth of a second brings no more."""
    before, now = -1, page_cache.resident_bytes([path])
    while before != now:
        time.sleep(0.1)
        before, now = now, page_cache.resident_bytes([path])
    return now


def test_what_is_in_memory_is_not_asked_for(mapped) -> None:  # type: ignore[no-untyped-def]
    """mincore by another road: the pages of the file that `page_cache` counts."""
    path, segments, mapping = mapped
    pages = pages_in_memory(segments, SEGMENTS, LAYOUT, HEADS)
    assert pages.shape == (SEGMENTS, HEADS * SEGMENT // TILE) and not pages.any()
    index, counts = _lists([0, 3, 40 * TILE], [SEGMENT + 5])
    assert read_ahead(index, counts, segments, SEGMENTS, LAYOUT, pages) == 3
    assert np.flatnonzero(pages).tolist() == [0, 40, 3 * SEGMENT // TILE]  # are marked as asked for
    assert read_ahead(index, counts, segments, SEGMENTS, LAYOUT, pages) == 0
    assert read_ahead(index, counts, segments, SEGMENTS, LAYOUT) == 3
    memoryview(mapping)[SEGMENT * LAYOUT.tile_bytes // TILE * HEADS]  # the first of segment 1
    n_bytes = _settled(path)  # the system reads ahead of what is touched, too
    in_memory = pages_in_memory(segments, SEGMENTS, LAYOUT, HEADS)
    assert in_memory[1, 0] and set(np.unique(in_memory)) <= {0, 1}
    assert in_memory.sum() * mmap.PAGESIZE == n_bytes


@pytest.mark.parametrize("n_heads", [1, 3])
def test_pages_are_found_in_segments_with_gaps_and_in_other_files(n_heads: int) -> None:
    """Of 34 pages, or 102, in slots of a multiple of 16, the last segment in another mapping."""
    layout, page = TileLayout(64, "q8_0", "q8_0"), mmap.PAGESIZE
    n_bytes = layout.segment_bytes(n_heads)
    n_pages, slot = -(-n_bytes // page), -(-n_bytes // 65536) * 65536
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mappings = [mmap.mmap(-1, n * slot, flags=flags) for n in (3, 1)]
    for mapping in mappings:
        mapping.madvise(mmap.MADV_NOHUGEPAGE)
    bases = [np.frombuffer(mapping, np.uint8).ctypes.data for mapping in mappings]
    segments = np.array([*(bases[0] + slot * np.arange(3)), bases[1]])
    mappings[0][slot + 5 * page] = 1
    mappings[0][2 * slot + (n_pages - 1) * page] = 1
    mappings[1][0] = 1
    in_memory = pages_in_memory(segments, 4, layout, n_heads)
    assert list(zip(*map(np.ndarray.tolist, np.nonzero(in_memory)))) == [
        (1, 5), (2, n_pages - 1), (3, 0)
    ]  # fmt: skip
    assert pages_in_memory(segments, 0, layout, n_heads).shape == (0, n_pages)
    with pytest.raises(OpsError, match="pages in memory: Cannot allocate memory"):
        pages_in_memory(np.array([0, slot]), 2, layout, n_heads)


def test_segments_in_memory_are_left_alone(mapped) -> None:  # type: ignore[no-untyped-def]
    _, segments, _ = mapped
    index, counts = _lists([5, SEGMENT, 2 * SEGMENT], [2 * SEGMENT + 1])
    segments = np.concatenate([segments[:1], np.zeros(3, np.int64)])
    assert read_ahead(index, counts, segments, 1, LAYOUT) == 1


def test_refuses_in_words() -> None:
    index, counts = _lists([1], [2])
    for n_mapped, lengths in ((5, counts), (-1, counts), (4, counts[:1])):
        with pytest.raises(OpsError, match="read ahead: "):
            read_ahead(index, lengths, np.zeros(4, np.int64), n_mapped, LAYOUT)
    with pytest.raises(OpsError, match=r"read ahead: pages are \(4, 7\), expected \(4, 128\)"):
        pages = np.zeros((4, 7), np.uint8)
        read_ahead(index, counts, np.zeros(4, np.int64), 4, LAYOUT, pages)
