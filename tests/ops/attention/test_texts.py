"""Attention in texts against softmax attention in float64, text by text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.arrays import F32
from kvarn.ops.attention.texts.api import TextScratch, text_attention
from kvarn.ops.attention.texts.work import KEYS, ROWS, Texts
from kvarn.ops.cpu import CPU
from kvarn.ops.device import Device
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.texts import text_attention as reference

from ...thread_counts import with_threads

LENGTHS = [*range(1, 8), 15, 16, 17, 31, 32, 33, ROWS, ROWS + 1, KEYS, KEYS + 1, 2 * KEYS + 17]


def _rows(n: int, heads: tuple[int, int], head_dim: int) -> tuple[F32, F32, F32]:
    rng = np.random.default_rng(n)
    q, k, v = (rng.normal(0, 1, (n, h, head_dim)) for h in (heads[0], heads[1], heads[1]))
    return q.astype(np.float32), k.astype(np.float32), v.astype(np.float32)


def _attend(qkv: tuple[F32, F32, F32], lengths: Sequence[int], window: int) -> F32:
    out = np.full_like(qkv[0], np.nan)
    text_attention(qkv, Texts(lengths), window, out, TextScratch(out.shape[2]))
    return out


@pytest.mark.parametrize(
    ("head_dim", "heads"),
    [(32, (2, 2)), (64, (3, 1)), (80, (2, 2)), (128, (8, 1)), (256, (1, 1)), (20, (4, 2))],
)
@pytest.mark.parametrize("window", [0, 6, 128])
def test_each_token_reads_its_text(head_dim: int, heads: tuple[int, int], window: int) -> None:
    qkv = _rows(sum(LENGTHS), heads, head_dim)
    expected = reference(qkv, LENGTHS, window)
    np.testing.assert_allclose(_attend(qkv, LENGTHS, window), expected, atol=5e-6)


@pytest.mark.parametrize("window", [0, 1, 300])
def test_large_scores_are_a_softmax_too(window: int) -> None:
    """Scores to some thousands, whose exponentials are no floats; most keys weigh nothing."""
    lengths = [7, 40, 300]
    q, k, v = _rows(sum(lengths), (2, 1), 64)
    q *= np.float32(300)
    expected = reference((q, k, v), lengths, window)
    np.testing.assert_allclose(_attend((q, k, v), lengths, window), expected, atol=2e-3)


@pytest.mark.parametrize("window", [0, 128])
def test_the_longest_texts_are_read(window: int) -> None:
    """Some tokens of a text of 8192: the first and the last ones, and those at edges of blocks."""
    n, chosen = 8192, [0, 1, ROWS - 1, ROWS, 4095, 8190, 8191]
    q, k, v = _rows(n, (1, 1), 32)
    found = _attend((q, k, v), [n], window)[chosen, 0]
    scores = q[chosen, 0].astype(np.float64) @ k[:, 0].T.astype(np.float64) / 32**0.5
    if window:
        scores[np.abs(np.arange(n) - np.array(chosen)[:, None]) > window // 2] = -np.inf
    weights = np.exp(scores - scores.max(1, keepdims=True))
    expected = weights @ v[:, 0] / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=5e-6)


def test_a_texts_bits_are_its_own() -> None:
    """Beside other texts, and with another number of threads."""
    lengths = [200, 3, 29, 64]
    qkv = _rows(sum(lengths), (4, 2), 64)
    for _ in with_threads(threads.max_threads()):
        together = _attend(qkv, lengths, 20)
    for _ in with_threads(1):
        first = 0
        for n in lengths:
            rows = slice(first, first + n)
            alone = _attend(tuple(np.ascontiguousarray(x[rows]) for x in qkv), [n], 20)
            np.testing.assert_array_equal(alone, together[rows])
            first += n


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = _rows(5, (4, 2), 32)
    out, scratch = np.empty_like(q), TextScratch(32)
    with pytest.raises(OpsError, match=r"found lengths \[3, 0\], expected 1 or more"):
        Texts([3, 0])
    with pytest.raises(OpsError, match=r"texts: q is float32 \(5, 4, 32\), expected .*\(6, 4, 32"):
        text_attention((q, k, v), Texts([6]), 0, out, scratch)
    with pytest.raises(OpsError, match="4 heads of 32 over 3"):
        text_attention((q, np.ones((5, 3, 32), np.float32), v), Texts([5]), 0, out, scratch)
    with pytest.raises(OpsError, match=r"texts: v is float64"):
        text_attention((q, k, v.astype(np.float64)), Texts([5]), 0, out, scratch)  # type: ignore[arg-type]


def test_a_device_without_text_encoders_refuses_them() -> None:
    assert isinstance(CPU.text_scratch(32), TextScratch)
    with pytest.raises(OpsError, match="encoder: the device cpu does not compute its attention"):
        Device.text_scratch(CPU, 32)
