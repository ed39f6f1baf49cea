"""Attention of a chunk of a prompt over tiles that `ops` wrote, against float64 NumPy."""

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.attention import ChunkScratch, chunk_attention
from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.reference.attention import attention_reference, read_kv

TOLERANCE = 2 * 2.0**-11  # of the sum of |terms|: weights, and what SDPA returns, are f16


def _half(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize(
    ("head_dim", "k_type", "v_type", "heads", "kv_heads", "start", "n_rows", "window", "softcap"),
    [
        (64, "f16", "f16", 2, 2, 0, 1, None, 0.0),
        (64, "q8_0", "q4_0", 3, 1, 50, 33, None, 0.0),
        (80, "q4_0", "q8_0", 1, 1, 63, 65, None, 2.0),
        (128, "q8_0", "q8_0", 2, 1, 0, 64, 100, 0.0),  # the window hides nothing
        (96, "q4_0", "f16", 2, 2, 1000, 70, 17, 0.0),
        (256, "f16", "q4_0", 1, 1, 40, 31, 33, 5.0),
        (64, "f16", "f16", 8, 1, 31, 2, 1, 0.0),
    ],
)
@pytest.mark.parametrize("old", [False, True])
def test_rows_see_what_is_before_them(
    device, old, head_dim, k_type, v_type, heads, kv_heads, start, n_rows, window, softcap
) -> None:
    rng, layout = np.random.default_rng(head_dim), TileLayout(head_dim, k_type, v_type)
    stop = start + n_rows
    k, v = rng.standard_normal((2, stop, kv_heads, head_dim)).astype(np.float32)
    q = _half(rng.standard_normal((n_rows, heads, head_dim)))
    memory = np.full((2, layout.segment_bytes(kv_heads)), 255, np.uint8)
    places = memory.ctypes.data + memory.shape[1] * np.arange(2, dtype=np.int64)
    append_kv(k, v, places, layout, 0)
    k, v = (_half(x) for x in read_kv(places, layout, kv_heads, 0, stop))
    options = {"softmax": Softmax(0.25, softcap), "window": window}  # exact in f16
    want, terms = (attention_reference(q, k, x, start, **options) for x in (v, np.abs(v)))
    queries = torch.tensor(q, device=device)
    out = torch.full_like(queries, torch.nan)
    scratch = ChunkScratch(heads, kv_heads, layout, stop, device)
    scratch.old |= old
    kv = torch.tensor(memory, device=device)
    chunk_attention(queries, kv, start, out, **options, scratch=scratch)
    assert (np.abs(out.cpu().numpy() - want) <= TOLERANCE * terms).all()


def test_refuses_in_words(device) -> None:
    layout = TileLayout(64, "f16", "f16")
    scratch = ChunkScratch(2, 1, layout, 10, device)
    kv, q = torch.zeros((1, layout.segment_bytes(1)), dtype=torch.uint8), torch.zeros((3, 2, 64))
    out = torch.zeros_like(q)
    for said, given, options in (
        ("tokens 8 to 10", (q, kv, 8, out), {}),
        ("window is 0", (q, kv, 0, out), {"window": 0}),
        ("q is", (q.half(), kv, 0, out), {}),
        ("segments are", (q, kv[:, 2:], 0, out), {}),
    ):
        with pytest.raises(CudaOpsError, match=said):
            chunk_attention(*given, softmax=Softmax(1.0), scratch=scratch, **options)
