"""The memory of the forward pass: allocated once, used through views of one row per token."""

from __future__ import annotations

import numpy as np

from ..ops.device import Array, Device
from .config import ModelConfig


class Rows:
    """The arrays of a forward pass: views of rows first … stop - 1 of the shared memory."""

    def __init__(
        self, config: ModelConfig, memory: dict[str, Array], ids: Array, first: int, stop: int
    ) -> None:
        heads, kv_heads, head_dim = config.n_heads, config.n_kv_heads, config.head_dim
        n, rows = stop - first, slice(first, stop)
        self.ids = ids[rows]
        self.x = memory["x"][rows]
        self.normed = memory["normed"][rows]
        self.branch = memory["branch"][rows]
        self.other = memory["other"][rows]
        self.q = memory["q"][rows]
        self.k = memory["k"][rows]
        self.v = memory["v"][rows]
        self.attended = memory["attended"][rows]
        self.gate = memory["gate"][rows]
        self.up = memory["up"][rows]
        self.temperature = memory["temperature"][rows, 0]
        self.q_heads = self.q.reshape(n, heads, head_dim)
        self.k_heads = self.k.reshape(n, kv_heads, head_dim)
        self.v_heads = self.v.reshape(n, kv_heads, head_dim)
        self.attended_heads = self.attended.reshape(n, heads, head_dim)
        self.q_rows = self.q.reshape(n * heads, head_dim)
        self.k_rows = self.k.reshape(n * kv_heads, head_dim)


class Buffers:
    """Memory of a device for up to `max_chunk` tokens; later calls allocate nothing but views."""

    def __init__(self, config: ModelConfig, max_chunk: int, device: Device) -> None:
        n_q, n_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        widths = {
            **dict.fromkeys(("x", "normed", "branch"), config.n_embd),
            # Only parallel branches need memory at the same time.
            "other": config.n_embd if config.architecture.parallel else 0,
            **dict.fromkeys(("q", "attended"), n_q),
            **dict.fromkeys(("k", "v"), n_kv),
            **dict.fromkeys(("gate", "up"), config.n_ff),
            "temperature": 1,
        }
        self._config = config
        self._memory = {
            name: device.memory((max_chunk, width), np.float32) for name, width in widths.items()
        }
        # A pass also computes rows that hold no token: these have to hold numbers.
        device.put(np.zeros((max_chunk, n_q), np.float32), self._memory["attended"])
        # Recording a graph reads the ids, so they have to be valid from the start.
        self._ids = device.memory((max_chunk,), np.int32)
        device.put(np.zeros(max_chunk, np.int32), self._ids)
        self._rows: dict[tuple[int, int], Rows] = {}

    def rows(self, first: int, stop: int) -> Rows:
        """Rows first … stop - 1; the same object as long as it is cached."""
        key = first, stop
        if key not in self._rows:
            # Most are single tokens and full chunks; a prompt has one chunk of another size.
            if len(self._rows) >= 8:
                self._rows.clear()
            self._rows[key] = Rows(self._config, self._memory, self._ids, first, stop)
        return self._rows[key]
