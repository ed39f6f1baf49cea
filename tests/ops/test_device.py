"""The CPU as a device: what stores ask of it beside kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.cpu import CPU
from kvarn.ops.device import Device
from kvarn.ops.errors import OpsError
from kvarn.ops.types import QUANT_TYPES


def _column(n_segments: int, kv_heads: int, item_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory of a column, uint8 (segments, J, 1024, item_bytes), and its places."""
    rng = np.random.default_rng(0)
    memory = rng.integers(0, 256, (n_segments, kv_heads, SEGMENT, item_bytes), np.uint8)
    return memory, memory.ctypes.data + memory[0].nbytes * np.arange(n_segments)


def test_items_are_read_by_head_and_token() -> None:
    memory, places = _column(3, 2, 5)
    found = CPU.read_items(places, 2, 5)
    np.testing.assert_array_equal(found, memory.swapaxes(0, 1).reshape(2, 3 * SEGMENT, 5))
    assert CPU.read_items(places[:0], 2, 5).shape == (2, 0, 5)


def test_items_are_written_where_they_are_read() -> None:
    memory, places = _column(3, 2, 4)
    before, items = memory.copy(), np.full((2, SEGMENT, 4), 7, np.uint8)
    CPU.write_items(places[1:2], items)
    assert (memory[1] == 7).all()
    np.testing.assert_array_equal(memory[::2], before[::2])


def test_a_device_without_experts_refuses_them_by_name() -> None:
    data, q8_0 = np.zeros((2, 3, 34), np.uint8), QUANT_TYPES["Q8_0"]
    assert CPU.expert_matrix(q8_0, data, 32, "x").n_bytes == data.nbytes
    with pytest.raises(OpsError, match="loading x: the device cpu does not compute routed experts"):
        Device.check_experts(CPU, "x")


def test_a_device_without_adapters_refuses_them() -> None:
    a, b = np.ones((1, 8), np.float32), np.ones((4, 1), np.float32)
    assert CPU.low_rank(a, b).n_bytes == 16 * 4 * 2 + 80 * 4 + 80
    with pytest.raises(OpsError, match="adapters: the device cpu does not compute them; use"):
        Device.low_rank(CPU, a, b)


def test_a_recorded_number_is_read_when_the_graph_runs() -> None:
    from kvarn.ops.attention.layout import TileLayout

    layout, number = TileLayout(32, "f16", "f16"), CPU.numbers(1)
    memory = np.zeros(layout.segment_bytes(1), np.uint8)
    places, one = np.array([memory.ctypes.data]), np.ones((1, 1, 32), np.float32)
    graph = CPU.record(lambda: CPU.append_kv(one, one, places, layout, number.now()[0]))
    for position in (3, 5):
        number.set((position,))
        graph.run()
    keys: Any = CPU.read_kv(places, layout, 1, 0, 7)[0]
    assert keys[:, 0, 0].tolist() == [0, 0, 0, 1, 0, 1, 0]
