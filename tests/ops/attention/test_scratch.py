"""Attention gives the same whatever its scratch memory held before."""

from collections.abc import Iterator

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.jit.arena import aligned
from kvarn.jit.launch import Cell, record
from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.api import AttentionScratch, append_kv, attention
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.reference.attention import attention_reference, read_kv

N_TOKENS = 41


@pytest.fixture
def threads_as_before() -> Iterator[None]:
    before = threads.n_threads()
    yield
    threads.set_threads(before)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", ["f16", "q4_0"])
@pytest.mark.parametrize("filler", [0.0, 7.0, np.nan, np.inf])
def test_what_scratch_held_does_not_matter(filler: float, kind: str, n: int) -> None:
    """Rows of 16 are padded to 32: padding of zeros times garbage must not count."""
    heads, head_dim = 2, 16
    layout = TileLayout(head_dim, kind, kind)
    memory = aligned(layout.segment_bytes(1), np.uint8)
    memory.fill(0)
    segments = np.array([memory.ctypes.data], np.int64)
    rng = np.random.default_rng(5)
    k, v = rng.standard_normal((2, N_TOKENS, 1, head_dim)).astype(np.float32)
    append_kv(k, v, segments, layout, 0)
    q = rng.standard_normal((n, heads, head_dim)).astype(np.float32)
    expected = attention_reference(
        q, *read_kv(segments, layout, 1, 0, N_TOKENS), N_TOKENS - n, softmax=Softmax(0.25)
    )
    scratch = AttentionScratch(heads, 1, layout, max_rows=4, n_ctx=64)
    for array in (*scratch.blocks, scratch.chunk_works, scratch.token_works.view(np.float32)):
        array.fill(filler)
    out = np.empty_like(q)
    for _ in range(2):  # the second time scratch holds the first result
        attention(q, segments, N_TOKENS - n, out, softmax=Softmax(0.25), scratch=scratch)
        np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.usefixtures("threads_as_before")
def test_attention_may_be_recorded_before_it_has_scratch_for_all_threads() -> None:
    """The layout and the number of threads are new while a token is recorded."""
    if threads.max_threads() < 2:
        pytest.skip("one thread is all there is")
    layout, heads, start = TileLayout(23), 2, np.zeros(1, np.int64)
    memory = aligned(layout.segment_bytes(1), np.uint8)
    memory.fill(0)
    segments = np.array([memory.ctypes.data], np.int64)
    rng = np.random.default_rng(6)
    k, v, q = (rng.standard_normal((1, n, 23)).astype(np.float32) for n in (1, 1, heads))
    out = np.empty_like(q)
    threads.set_threads(1)
    scratch = AttentionScratch(heads, 1, layout, max_rows=1, n_ctx=64)
    threads.set_threads(2)

    def token() -> None:
        append_kv(k, v, segments, layout, Cell.at(start))
        attention(q, segments, Cell.at(start), out, softmax=Softmax(0.25), scratch=scratch)

    graph = record(token)
    for position in range(3):
        start[0] = position
        k[:], v[:] = rng.standard_normal((2, 1, 1, 23))
        graph.run()
        stored = read_kv(segments, layout, 1, 0, position + 1)
        expected = attention_reference(q, *stored, position, softmax=Softmax(0.25))
        np.testing.assert_allclose(out, expected, atol=1e-5)
