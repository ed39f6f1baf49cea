"""A KV cache of one layer in plain memory, of random keys and values; random rows of any type."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from kvarn.ops.attention import TileLayout, n_segments
from kvarn.ops.attention.api import AttentionScratch, append_kv, attention, attention_rows
from kvarn.ops.attention.layout import SharedLayout, layout_of
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.reference.attention import read_kv
from kvarn.ops.types import QUANT_TYPES

POISON = 255  # as f16 and as a scale: NaN, so a read of unwritten memory shows in the result


@dataclass
class Cache:
    """n_tokens keys and values of n_kv_heads, appended at once; bytes never written are poison.

    Rows of more than 512 are both."""

    layout: TileLayout
    n_kv_heads: int
    n_tokens: int
    k: NDArray[np.float32]
    v: NDArray[np.float32]
    memory: NDArray[np.uint8]
    segments: NDArray[np.int64]

    def stored(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return read_kv(self.segments, self.layout, self.n_kv_heads, 0, self.n_tokens)

    def attend(
        self,
        q: NDArray[np.float32],
        start: int,
        window: int | None = None,
        log_sums=None,
        **of_softmax,
    ) -> NDArray[np.float32]:
        """Attention of q (T, H, E) at positions start.. with scale 1/sqrt(E)."""
        out = np.full_like(q, np.nan)
        scratch = AttentionScratch(
            q.shape[1], self.n_kv_heads, self.layout, max_rows=512, n_ctx=self.n_tokens
        )
        softmax = Softmax(**{"scale": self.layout.head_dim**-0.5} | of_softmax)
        given = {"softmax": softmax, "window": window, "scratch": scratch}
        if log_sums is None:
            attention(q, self.segments, start, out, **given)
        else:
            attention_rows(q, self.segments, start, out, log_sums=log_sums, **given)
        return out


@pytest.fixture
def make_cache() -> Callable[..., Cache]:
    def make(
        head_dim: int,
        k_type: str,
        v_type: str,
        n_kv_heads: int,
        n_tokens: int,
        step: int = 1 << 30,
    ) -> Cache:
        layout = layout_of(head_dim, k_type, v_type)
        size = layout.segment_bytes(n_kv_heads)
        raw = np.full(n_segments(n_tokens) * size + 64, POISON, np.uint8)
        memory = raw[-raw.ctypes.data % 64 :][: n_segments(n_tokens) * size].reshape(-1, size)
        segments = memory.ctypes.data + size * np.arange(len(memory), dtype=np.int64)
        rng = np.random.default_rng(n_tokens + head_dim)
        k, v = rng.standard_normal((2, n_tokens, n_kv_heads, head_dim)).astype(np.float32)
        if isinstance(layout, SharedLayout):
            v = k
        for start in range(0, n_tokens, step):
            stop = min(start + step, n_tokens)
            append_kv(k[start:stop], v[start:stop], segments, layout, start)
        return Cache(layout, n_kv_heads, n_tokens, k, v, memory, segments)

    return make


@pytest.fixture
def queries() -> Callable[..., NDArray[np.float32]]:
    def make(n_tokens: int, n_heads: int, head_dim: int) -> NDArray[np.float32]:
        rng = np.random.default_rng(n_tokens * n_heads + 1)
        return rng.standard_normal((n_tokens, n_heads, head_dim)).astype(np.float32)

    return make


# Where the f16 numbers of a block are; random bytes there could be NaN or enormous.
HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "MXFP4": (),
}


def _rows(type_name: str, n_rows: int, n_cols: int, seed: int = 0) -> np.ndarray:
    """uint8[n_rows, row_bytes]: every pattern of codes and integer scales, sane float scales."""
    rng, quant_type = np.random.default_rng(seed), QUANT_TYPES[type_name]
    if quant_type.block == 1:
        x = rng.normal(size=(n_rows, n_cols)).astype(np.float32)
        if type_name == "F16":
            return x.astype(np.float16).view(np.uint8)
        return x.view(np.uint8) if type_name == "F32" else _bf16(x)
    shape = n_rows, n_cols // quant_type.block, quant_type.n_bytes
    data = rng.integers(0, 256, shape, dtype=np.uint8)
    for at in HALVES.get(type_name, (0,)):
        scale = (0.01 * rng.normal(size=shape[:2])).astype(np.float16)
        data[:, :, at : at + 2] = scale.view(np.uint8).reshape(*shape[:2], 2)
    if type_name == "MXFP4":
        data[:, :, 0] = rng.integers(110, 130, shape[:2])
    return data.reshape(n_rows, -1)


def _bf16(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


@pytest.fixture(scope="session")
def random_rows() -> Callable[..., np.ndarray]:
    return _rows
