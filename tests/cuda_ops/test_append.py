"""What append_kv writes on a GPU: the bytes that `ops` writes."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kvarn.cuda_ops.append import append_kv
from kvarn.cuda_ops.attention.tiles import Tiles, rotated
from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.api import append_kv as append_on_cpu

NEVER = 0xA5  # what no append may touch


def _awkward(rng, shape) -> np.ndarray:
    """Rows of many sizes; zeros, negative zeros, ties of sign, exact halves among them."""
    x = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 4, (*shape[:2], 1))).astype("f4")
    n, special = np.arange(shape[2]), np.zeros((6, shape[2]), np.float32)
    special[1] = -0.0
    special[2], special[3] = np.where(n % 2, 3.0, -3.0), np.where(n % 2, -3.0, 3.0)
    special[4] = np.where(n % 32 == 0, 127.0, n % 32 - 15.5)
    special[5] = np.where(n % 32 == 0, -8.0, n % 32 / 2 - 7.5)
    flat = x.reshape(-1, shape[2])
    flat[: len(special)] = special[: len(flat)]
    return x


def _both(device, layout, k, v, start) -> tuple[np.ndarray, np.ndarray]:
    """The segments that `ops` writes and those that the kernel writes."""
    n_kv_heads = k.shape[1]
    n_bytes = layout.segment_bytes(n_kv_heads)
    want = np.full((2, n_bytes), NEVER, np.uint8)
    got = torch.full((2, n_bytes), NEVER, dtype=torch.uint8, device=device)
    places = want.ctypes.data + n_bytes * np.arange(2, dtype=np.int64)
    append_on_cpu(k, v, places, layout, start)
    at = torch.tensor([start], dtype=torch.int32, device=device)
    append_kv(torch.tensor(k, device=device), torch.tensor(v, device=device), got, layout, at)
    return want, got.cpu().numpy()


@pytest.mark.parametrize(
    ("head_dim", "k_type", "v_type", "n_kv_heads", "n_tokens", "start"),
    [
        (64, "f16", "f16", 2, 1, 0),
        (64, "q8_0", "q8_0", 2, 17, 1015),  # crosses a tile and a segment
        (80, "q4_0", "q8_0", 1, 15, 3),
        (96, "q8_0", "q4_0", 3, 16, 16),
        (128, "q4_0", "q4_0", 2, 16, 1023),
        (256, "q4_0", "f16", 1, 2, 31),
        (256, "q8_0", "q4_0", 1, 1, 2047),
    ],
)
def test_bytes_are_those_of_ops(
    device, head_dim, k_type, v_type, n_kv_heads, n_tokens, start
) -> None:
    rng = np.random.default_rng(head_dim + n_tokens)
    layout = TileLayout(head_dim, k_type, v_type)
    k, v = (_awkward(rng, (n_tokens, n_kv_heads, head_dim)) for _ in range(2))
    want, got = _both(device, layout, k, v, start)
    np.testing.assert_array_equal(got, want)


@triton.jit
def _rotated_kernel(x, out, N: tl.constexpr, T: tl.constexpr):
    at = tl.arange(0, 2)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, rotated(tl.load(x + at), T))


@pytest.mark.parametrize("head_dim", [64, 96, 256])
def test_rotated_rows_have_the_bits_of_butterflies(device, head_dim) -> None:
    """Scaled first, then added and subtracted at strides 1, 2, 4, …: codes of 4 bits show next to
    nothing of another rounding."""
    tiles, width = Tiles(TileLayout(head_dim, "q4_0", "q4_0"), 1), 256
    x = np.random.default_rng(head_dim).standard_normal((2, width)).astype(np.float32)
    out = torch.empty((2, width), device=device)
    _rotated_kernel[(1,)](
        torch.tensor(x, device=device), out, N=width, T=tiles, enable_fp_fusion=False
    )
    want, n, stride = x * np.float32(tiles.rotation_factor), tiles.layout.rotation, 1
    while stride < n:
        a, b = want.reshape(2, -1, 2, stride).swapaxes(0, 2).swapaxes(1, 2)
        want = np.stack([a + b, a - b], 2).reshape(2, width)
        stride *= 2
    np.testing.assert_array_equal(out.cpu().numpy(), want)


def test_nothing_is_written_beyond_the_segments(device) -> None:
    layout, k = TileLayout(64, "q8_0", "q8_0"), torch.ones((4, 1, 64), device=device)
    kv = torch.full((2, layout.segment_bytes(1)), NEVER, dtype=torch.uint8, device=device)
    append_kv(k, k, kv[:1], layout, torch.tensor([1022], dtype=torch.int32, device=device))
    assert (kv[1] == NEVER).all() and (kv[0] != NEVER).sum() > 2 * 64


def test_refuses_in_words(device) -> None:
    layout = TileLayout(64, "f16", "f16")
    kv = torch.zeros((1, layout.segment_bytes(2)), dtype=torch.uint8, device=device)
    k, start = torch.zeros((1, 2, 64)), torch.zeros(1, dtype=torch.int32)
    for words, changed in (
        ("KV heads, 64", {"k": k[..., :32]}),
        ("v is", {"v": k.half()}),
        ("segments are", {"kv": kv[:, 1:]}),
        ("int32 .1,.", {"start": start.long()}),
    ):
        given = {"k": k, "v": k, "kv": kv, "layout": layout, "start": start, **changed}
        with pytest.raises(CudaOpsError, match=words):
            append_kv(**given)
