"""Requested tiles come into memory by themselves, and no others."""

import mmap
import time
from pathlib import Path

import numpy as np
import pytest

from kvarn.ops.attention.decode.read_ahead import CAN_READ_AHEAD, read_ahead
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
    wanted, began = 4 * LAYOUT.tile_bytes, time.monotonic()
    while page_cache.resident_bytes([path]) < wanted and time.monotonic() < began + 20:
        time.sleep(0.01)
    assert page_cache.resident_bytes([path]) == wanted


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
