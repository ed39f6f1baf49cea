"""The KV cache in memory: room for tokens, and the columns that methods keep beside it."""

import ctypes

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT, TileLayout
from kvarn.runtime.store import RamStore, StoreError


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
