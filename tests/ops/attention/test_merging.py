"""Attention to parts of the tokens, merged, is attention to all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.jit import threads
from kvarn.jit.launch import record
from kvarn.ops.attention.merging import NO_SINKS, MergeScratch, merge_parts
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.attention import merge_reference

F32 = np.float32


@given(st.integers(0, 1 << 30), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_merged_parts_are_attention_to_all_tokens(
    seed: int, n_parts: int, n_rows: int, sunk: bool
) -> None:
    """Parts that have no token come with m = -1e30 and any output."""
    rng, n_heads = np.random.default_rng(seed), 3
    n, n_empty = int(rng.integers(1, 70)), int(rng.integers(0, n_parts))
    scores = 8 * rng.standard_normal((n_parts, n_rows, n_heads, 10))
    values = rng.standard_normal((n_parts, 10, n))
    most = scores.max(-1)
    weights = np.exp(scores - most[..., None])
    total = weights.sum(-1)
    outs = (np.einsum("pths,pse->pthe", weights, values) / total[..., None]).astype(F32)
    masses = np.stack([most, total], -1).astype(F32)
    masses[:n_empty] = -1e30, 1
    sinks = rng.standard_normal(n_heads).astype(F32) if sunk else NO_SINKS
    out = np.empty(outs.shape[1:], F32)
    merge_parts(outs, masses, out, sinks=sinks, scratch=MergeScratch(n_parts, n_rows, n_heads))
    weights = np.exp(np.concatenate([*scores[n_empty:]], -1))
    whole = weights.sum(-1) + (np.exp(sinks.astype(float)) if sunk else 0)
    expected = weights @ np.concatenate([*values[n_empty:]]) / whole[..., None]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(out, merge_reference(outs, masses, sinks), rtol=2e-7, atol=0)


def test_bits_depend_on_nothing_but_the_parts() -> None:
    rng, before, found = np.random.default_rng(0), threads.n_threads(), []
    outs = rng.standard_normal((3, 40, 16, 65)).astype(F32)
    masses = np.abs(rng.standard_normal((3, 40, 16, 2))).astype(F32)
    for n in (1, 2):
        threads.set_threads(n)
        found.append(np.empty(outs.shape[1:], F32))
        merge_parts(outs, masses, found[-1], scratch=MergeScratch(3, 40, 16))
    threads.set_threads(before)
    for t in (0, 39):
        found.append(np.empty((1, 16, 65), F32))
        one = [np.ascontiguousarray(x[:, t : t + 1]) for x in (outs, masses)]
        graph = record(merge_parts, *one, found[-1], scratch=MergeScratch(3, 2, 16))
        graph.run()
        np.testing.assert_array_equal(found[-1][0], found[0][t])
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((2, 1, 3, 4), (2, 1, 3, 1), (1, 3, 4), (0,)), "masses"),
        (((2, 1, 3, 4), (2, 1, 3, 2), (1, 3, 5), (0,)), "outputs"),
        (((2, 1, 3, 4), (2, 1, 3, 2), (1, 3, 4), (2,)), "sinks"),
        (((3, 1, 3, 4), (3, 1, 3, 2), (1, 3, 4), (0,)), "3 parts"),
        (((2, 2, 3, 4), (2, 2, 3, 2), (2, 3, 4), (0,)), "6 rows and heads"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, words: str) -> None:
    outs, masses, out, sinks = (np.zeros(shape, F32) for shape in shapes)
    with pytest.raises(OpsError, match=words):
        merge_parts(outs, masses, out, sinks=sinks, scratch=MergeScratch(2, 1, 3))
