"""Attention over KV tiles in plain NumPy, slow and readable."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from ..arrays import F32
from ..attention.layout import BLOCK, SEGMENT, TILE, TILES, TileLayout
from ..attention.softmax import Softmax


def hadamard(n: int) -> NDArray[np.float64]:
    """The orthonormal Hadamard matrix of Sylvester's order, (n, n), its own inverse."""
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(n)


def rotate(x: NDArray[np.floating], block: int) -> NDArray[np.float64]:
    """Multiply every run of `block` elements of the last axis by the Hadamard matrix."""
    runs = x.reshape(*x.shape[:-1], -1, block).astype(np.float64)
    return (runs @ hadamard(block)).reshape(x.shape)


def read_kv(
    segments: NDArray[np.int64], layout: TileLayout, n_kv_heads: int, start: int, stop: int
) -> tuple[F32, F32]:
    """Keys and values as the cache holds them: float32 (tokens, n_kv_heads, head_dim) each.

    Rotated types are rotated back, so that the result can be compared with what was appended.
    """
    k, v = read_rows(segments, layout, n_kv_heads, start, stop)
    if layout.rotates_k:
        k = rotate(k, layout.rotation).astype(np.float32)
    if layout.rotates_v:
        v = rotate(v, layout.rotation).astype(np.float32)
    return k[..., : layout.head_dim].copy(), v[..., : layout.head_dim].copy()


def read_rows(
    segments: NDArray[np.int64], layout: TileLayout, n_kv_heads: int, start: int, stop: int
) -> tuple[F32, F32]:
    """Rows of K and V dequantised, as stored: rotated and padded, (tokens, heads, padded)."""
    ks, vs = [], []
    for segment in range(start // SEGMENT, -(-stop // SEGMENT)):
        size = layout.segment_bytes(n_kv_heads)
        raw = (ctypes.c_uint8 * size).from_address(int(segments[segment]))
        tiles = np.frombuffer(memoryview(raw), np.uint8).reshape(
            n_kv_heads, TILES, layout.tile_bytes
        )
        lo, hi = max(start - segment * SEGMENT, 0), min(stop - segment * SEGMENT, SEGMENT)
        k, v = _decode_tiles(tiles, layout)
        ks.append(k[:, lo:hi])
        vs.append(v[:, lo:hi])
    shape = n_kv_heads, 0, layout.padded
    k, v = (np.concatenate(x or [np.zeros(shape, np.float32)], 1) for x in (ks, vs))
    return k.swapaxes(0, 1).copy(), v.swapaxes(0, 1).copy()


def _decode_tiles(tiles: NDArray[np.uint8], layout: TileLayout) -> tuple[F32, F32]:
    """Tiles (heads, tiles, bytes) to two float32 (heads, tokens, padded)."""
    heads = len(tiles)
    n = TILE * layout.scale_row_bytes
    raw = np.ascontiguousarray(tiles[..., layout.scale_offset : layout.scale_offset + n])
    scales: F32 = raw.view(np.float16).astype(np.float32)
    scales = scales.reshape(heads, SEGMENT, layout.scale_row_bytes // 2)
    out = []
    for kind, at, row, first in (
        (layout.k_type, 0, layout.k_row_bytes, 0),
        (layout.v_type, layout.v_offset, layout.v_row_bytes, layout.v_scale // 2),
    ):
        raw = np.ascontiguousarray(tiles[..., at : at + TILE * row]).reshape(heads, SEGMENT, row)
        out.append(_decode_rows(raw, kind, scales[..., first : first + layout.blocks]))
    return out[0], out[1]


def _decode_rows(raw: NDArray[np.uint8], kind: str, scales: F32) -> F32:
    """Rows (heads, tokens, bytes) of one type to float32 (heads, tokens, padded)."""
    shape = raw.shape[:2]
    if kind == "f16":
        return raw.view(np.float16).astype(np.float32)
    if kind == "q8_0":
        q = raw.view(np.int8).reshape(*shape, -1, BLOCK).astype(np.float32)
    else:
        nibbles = raw.reshape(*shape, -1, BLOCK // 2)
        q = np.concatenate([nibbles & 15, nibbles >> 4], -1).astype(np.float32) - 8
    return (q * scales[..., None]).reshape(*shape, -1)


def _sinks(q: NDArray[np.floating], softmax: Softmax) -> NDArray[np.float64]:
    """The logit of each head; -inf where there are no sinks."""
    if softmax.sinks is None:
        return np.full(q.shape[1], -np.inf)
    return np.asarray(softmax.sinks, np.float64)


def attention_reference(
    q: NDArray[np.floating],
    k: NDArray[np.floating],
    v: NDArray[np.floating],
    start: int,
    *,
    softmax: Softmax,
    window: int | None = None,
) -> NDArray[np.float64]:
    """softmax(scale q k^T + causal mask) v in float64.

    q (T, H, E) at positions start..start+T-1; k, v (S, J, E) at positions 0..S-1, S >= start + T;
    query t sees keys max(0, pos - window + 1)..pos. Returns (T, H, E).
    """
    group = q.shape[1] // k.shape[1]
    q64 = q.astype(np.float64).swapaxes(0, 1)
    k64, v64 = (np.repeat(x.astype(np.float64), group, 1).swapaxes(0, 1) for x in (k, v))
    s = softmax.scores(q64 @ k64.swapaxes(1, 2))
    pos, key = start + np.arange(len(q))[:, None], np.arange(len(k))[None]
    seen = (key <= pos) & (key > pos - (window or len(k) + 1))
    s = np.where(seen, s, -np.inf)
    sink = _sinks(q, softmax)[:, None, None]
    most = np.maximum(s.max(-1, keepdims=True), sink)
    p = np.exp(s - most)
    p /= p.sum(-1, keepdims=True) + np.exp(sink - most)
    return (p @ v64).swapaxes(0, 1)


def gathered_reference(
    q: NDArray[np.floating],
    k: NDArray[np.floating],
    v: NDArray[np.floating],
    index: NDArray[np.uint32],
    counts: NDArray[np.int64],
    *,
    softmax: Softmax,
    log_weights: NDArray[np.floating] | None = None,
) -> NDArray[np.float64]:
    """softmax(scale q k_i + log_weights_i) v over the tokens listed per KV head, in float64.

    q (1, H, E); k, v (S, J, E); index (J, room), the first counts[j] of them; log_weights
    (H, room). Returns (1, H, E).
    """
    group, out = q.shape[1] // k.shape[1], np.empty(q.shape)
    for h in range(q.shape[1]):
        j = h // group
        listed = index[j, : counts[j]]
        s = k[listed, j].astype(np.float64) @ q[0, h].astype(np.float64)
        s = softmax.scores(s)
        if log_weights is not None:
            s += log_weights[h, : counts[j]]
        sink = _sinks(q, softmax)[h]
        most = max(s.max(), sink)
        p = np.exp(s - most)
        out[0, h] = p @ v[listed, j].astype(np.float64) / (p.sum() + np.exp(sink - most))
    return out


def merge_reference(outs: F32, masses: F32, sinks: F32) -> F32:
    """What `merge_parts` computes: outs (P, T, H, E), masses (P, T, H, 2), sinks (H,) or (0,)."""
    m, totals = np.moveaxis(masses.astype(np.float64), -1, 0)
    weights = totals * np.exp(m - m.max(0))
    whole = weights.sum(0) + (np.exp(sinks.astype(np.float64) - m.max(0)) if len(sinks) else 0)
    out: F32 = np.einsum("pth,pthe->the", weights / whole, outs.astype(np.float64))
    return out.astype(np.float32)
