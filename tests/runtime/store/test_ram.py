"""The KV cache in memory: room for tokens, and the columns that methods keep beside it."""

import ctypes
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT, TileLayout
from kvarn.runtime.store import RamStore, StoreError
from kvarn.runtime.store.ram.anonymous import HUGE, Pieces


def store(n_layers: int = 3, n_kv_heads: int = 2) -> RamStore:
    return RamStore(TileLayout(64, "f16", "f16"), n_layers, n_kv_heads)


def test_reserve_adds_whole_segments():
    ram = store()
    ram.reserve(1)
    first = ram.segments(1).copy()
    ram.reserve(SEGMENT + 1)
    assert len(first) == 1
    assert ram.segments(1).tolist()[:1] == first.tolist()
    assert len(ram.segments(1)) == 2
    assert ram.n_bytes == ram.bytes_for(SEGMENT + 1)


def test_a_column_has_room_for_every_token_and_grows_with_the_store():
    ram = store()
    ram.reserve(SEGMENT)
    column = ram.column("signatures", 4)
    assert [len(column.segments(layer)) for layer in range(3)] == [1, 1, 1]
    ram.reserve(2 * SEGMENT)
    size = 2 * SEGMENT * 4
    for layer in range(3):
        for base in column.segments(layer).tolist():
            items = np.frombuffer((ctypes.c_char * size).from_address(base), np.uint8)
            assert not items.any()
            items[:] = layer + 1
    assert column.filled.tolist() == [0, 0, 0]
    assert ram.n_bytes == ram.bytes_for(2 * SEGMENT) + 2 * 3 * size


def test_a_column_is_made_once_and_keeps_its_size():
    ram = store()
    assert ram.column("signatures", 4) is ram.column("signatures", 4)
    with pytest.raises(StoreError, match="holds 4 bytes per token, expected 8"):
        ram.column("signatures", 8)


@pytest.mark.parametrize("n_bytes", [4096, 40_960, 1_114_112, 5_000_000])
def test_pieces_are_zeros_of_their_own_in_huge_pages(n_bytes: int):
    """Mappings grow with what is held: of a few pieces none is larger than what they need."""
    pieces, held = Pieces(n_bytes, "pieces"), []
    for i in range(50):
        piece, address = pieces.take(len(held))
        assert len(piece) == n_bytes and not any(piece[:: n_bytes // 64])
        assert np.frombuffer(piece, np.uint8).ctypes.data == address
        piece[0], piece[-1] = i, 255 - i
        held.append((piece, address))
    for i, (piece, _) in enumerate(held):
        assert (piece[0], piece[-1]) == (i, 255 - i)
    places = sorted(address for _, address in held)
    assert all(b - a >= n_bytes for a, b in pairwise(places))
    if n_bytes > HUGE // 16:
        assert any(address % HUGE == 0 for _, address in held)
    taken = pieces.take(0)[0]
    taken[:] = b"\1" * n_bytes
    del taken, held, piece
    piece, _ = pieces.take(0)
    assert not any(piece[:: n_bytes // 64])  # what was given back is not given again


def test_memory_that_is_given_back_is_freed():
    ram = store(1, 1)
    ram.reserve(64 * SEGMENT)
    for part in ram.parts():
        np.frombuffer(part, np.uint8)[:] = 1
    before = _anonymous_bytes()
    del part
    ram.shrink(SEGMENT)
    assert before - _anonymous_bytes() > 60 * ram.bytes_for(SEGMENT)
    ram.reserve(3 * SEGMENT)
    assert [set(np.frombuffer(part, np.uint8)) for part in ram.parts()] == [{1}, {0}, {0}]


def _anonymous_bytes() -> int:
    rollup = Path("/proc/self/smaps_rollup")
    if not rollup.exists():
        pytest.skip("this system does not tell how much memory is in use")
    line = next(line for line in rollup.read_text().splitlines() if line.startswith("Anonymous:"))
    return 1024 * int(line.split()[1])
