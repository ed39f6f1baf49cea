"""Attention of one token over tiles that `ops` wrote, against float64 NumPy over the same rows."""

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.attention import (
    TokenScratch,
    gathered_attention,
    token,
    token_attention,
)
from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.ops.attention import TileLayout, n_segments
from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.reference.attention import (
    attention_reference,
    gathered_reference,
    read_kv,
    read_rows,
)

TOLERANCE = 1e-5  # of the sum of |terms|
SCALE, SOFTCAP = 0.2, 2.0


class Cache:
    """A layer's cache of random keys and values, on the CPU and on the device."""

    def __init__(self, device, layout: TileLayout, n_kv_heads: int, n_tokens: int, seed: int):
        rng = np.random.default_rng(seed)
        k, v = rng.standard_normal((2, n_tokens, n_kv_heads, layout.head_dim)).astype("f4")
        n_bytes = layout.segment_bytes(n_kv_heads)
        memory = np.full((n_segments(n_tokens), n_bytes), 255, np.uint8)  # NaN, if it is read
        places = memory.ctypes.data + n_bytes * np.arange(len(memory), dtype=np.int64)
        append_kv(k, v, places, layout, 0)
        self.k, self.v = read_kv(places, layout, n_kv_heads, 0, n_tokens)
        self.kv = torch.tensor(memory, device=device)
        self.sizes = np.abs(self.v)
        """What one token adds to the sum of |terms|; a rotated value is itself a sum."""
        if layout.rotates_v:
            n, rows = layout.rotation, read_rows(places, layout, n_kv_heads, 0, n_tokens)[1]
            runs = np.abs(rows).reshape(*rows.shape[:2], -1, n).sum(-1) / np.sqrt(n)
            self.sizes = np.repeat(runs, n, -1)[..., : layout.head_dim]


def _assert_close(out: torch.Tensor, want: np.ndarray, terms: np.ndarray) -> None:
    """|out - want| <= TOLERANCE of the sum of |terms|."""
    assert (np.abs(out.cpu().numpy() - want) <= TOLERANCE * terms).all()


def _queries(device, heads: int, head_dim: int) -> tuple[np.ndarray, torch.Tensor]:
    q = np.random.default_rng(heads).standard_normal((1, heads, head_dim)).astype(np.float32)
    return q, torch.tensor(q, device=device)


@pytest.mark.parametrize(
    ("head_dim", "k_type", "v_type", "heads", "kv_heads"),
    [
        (64, "f16", "f16", 8, 1),
        (64, "q8_0", "q8_0", 6, 2),
        (80, "q4_0", "f16", 1, 1),
        (96, "q8_0", "q4_0", 3, 1),
        (128, "q4_0", "q4_0", 2, 2),
        (256, "f16", "q8_0", 9, 1),
    ],
)
def test_one_token_sees_what_is_before_it(
    device, head_dim, k_type, v_type, heads, kv_heads
) -> None:
    layout, n_tokens = TileLayout(head_dim, k_type, v_type), 600
    cache = Cache(device, layout, kv_heads, n_tokens, head_dim)
    q, queries = _queries(device, heads, head_dim)
    scratch = TokenScratch(heads, kv_heads, layout, 1024, device)
    for position, window, softcap in (
        (0, None, 0.0), (16, 15, 0.0), (17, 17, SOFTCAP), (256, 200, SOFTCAP), (599, None, 0.0),
    ):  # fmt: skip
        k, v, sizes = (x[: position + 1] for x in (cache.k, cache.v, cache.sizes))
        options = {"softmax": Softmax(SCALE, softcap), "window": window}
        want, terms = (attention_reference(q, k, x, position, **options) for x in (v, sizes))
        out = torch.full_like(queries, torch.nan)
        at = torch.tensor([position], dtype=torch.int32, device=device)
        token_attention(queries, cache.kv, at, out, **options, scratch=scratch)
        _assert_close(out, want, terms)


@pytest.mark.parametrize(
    ("head_dim", "k_type", "v_type", "heads", "kv_heads"),
    [
        (64, "f16", "f16", 8, 2),
        (64, "q8_0", "q8_0", 8, 2),
        (96, "q8_0", "q4_0", 1, 1),
        (128, "q4_0", "q8_0", 6, 2),
        (80, "f16", "q8_0", 5, 1),
        (256, "q4_0", "q8_0", 8, 1),
    ],
)
def test_only_listed_tokens_count(device, head_dim, k_type, v_type, heads, kv_heads) -> None:
    rng, room, n_tokens = np.random.default_rng(head_dim), 600, 1300
    layout = TileLayout(head_dim, k_type, v_type)
    cache = Cache(device, layout, kv_heads, n_tokens, head_dim)
    q, queries = _queries(device, heads, head_dim)
    scratch = TokenScratch(heads, kv_heads, layout, room, device)
    for lengths, softcap in (
        ([1, 17], 0.0),
        ([257, 256], SOFTCAP),
        ([600, 15], 0.0),
    ):
        lists = np.full((kv_heads, room), -1, np.int32)
        for j in range(kv_heads):
            lists[j, : lengths[j]] = np.sort(rng.choice(n_tokens, lengths[j], replace=False))
        counts = np.array(lengths[:kv_heads], np.int32)
        want, terms = (
            gathered_reference(q, cache.k, x, lists, counts, softmax=Softmax(SCALE, softcap))
            for x in (cache.v, cache.sizes)
        )
        out = torch.full_like(queries, torch.nan)
        gathered_attention(
            queries, torch.tensor(lists, device=device), torch.tensor(counts, device=device),
            cache.kv, out, softmax=Softmax(SCALE, softcap), scratch=scratch,
        )  # fmt: skip
        _assert_close(out, want, terms)


@pytest.mark.parametrize("at_once", [1, 2])
def test_parts_are_merged_in_rounds(device, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """As those of more than 4,096 tokens. The largest score is in the first, a later or the last
    round, so that what was added before is rescaled, or what follows."""
    layout, n_tokens = TileLayout(64, "f16", "f16"), 1100
    scratch = TokenScratch(2, 1, layout, n_tokens, device)
    assert scratch.parts.n == 5
    monkeypatch.setattr(token, "PARTS_AT_ONCE", at_once)
    cache = Cache(device, layout, 1, n_tokens, 3)
    every = torch.arange(n_tokens, dtype=torch.int32, device=device)
    counts = torch.tensor([n_tokens], dtype=torch.int32, device=device)
    for top in (0, 300, 600, 1099):
        # Its score is about 9, the others' are below 5.
        q = np.tile(cache.k[top].astype(np.float32) * np.float32(0.7), (1, 2, 1))
        queries = torch.tensor(q, device=device)
        softmax = Softmax(SCALE)
        want, terms = (
            gathered_reference(
                q, cache.k, x, every.cpu().numpy()[None], [n_tokens], softmax=softmax
            )
            for x in (cache.v, cache.sizes)
        )
        out = torch.full_like(queries, torch.nan)
        gathered_attention(
            queries, every[None], counts, cache.kv, out, softmax=softmax, scratch=scratch
        )  # fmt: skip
        _assert_close(out, want, terms)


def test_refuses_in_words(device) -> None:
    layout = TileLayout(64, "f16", "f16")
    scratch = TokenScratch(8, 2, layout, 100, device)
    q, counts = torch.zeros((1, 8, 64)), torch.ones(2, dtype=torch.int32)
    kv = torch.zeros((1, layout.segment_bytes(2)), dtype=torch.uint8)
    lists, out = torch.zeros((2, 100), dtype=torch.int32), torch.zeros_like(q)
    for words, given in (
        ("segments are", (q, lists, counts, kv[:, 1:])),
        (".1, 8, 64.", (q[:, :4], lists, counts, kv)),
        ("lists of 101", (q, torch.zeros((2, 101), dtype=torch.int32), counts, kv)),
        ("counts is", (q, lists, counts[:1], kv)),
    ):
        with pytest.raises(CudaOpsError, match=words):
            gathered_attention(*given, out, softmax=Softmax(1.0), scratch=scratch)
    with pytest.raises(CudaOpsError, match="made for 100"):
        token_attention(q, kv, counts[:1], out, softmax=Softmax(1.0), scratch=scratch)
    with pytest.raises(CudaOpsError, match="window is 0"):
        token_attention(q, kv, counts[:1], out, softmax=Softmax(1.0), window=0, scratch=scratch)
