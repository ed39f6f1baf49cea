"""Sketches of keys in frames: each KV head has its own, for keys and for queries."""

import numpy as np
import pytest

from kvarn.ops.attention.api import append_kv
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import largest_reference
from kvarn.ops.select import Frame, Range

from .test_sketch import SEED, Sketches


def frame_of(n_kv_heads: int, head_dim: int) -> Frame:
    """A frame with a centre and scales at random."""
    rng = np.random.default_rng(head_dim)
    centre = rng.standard_normal((n_kv_heads, head_dim)).astype(np.float32)
    return Frame.of(0.3 * centre, rng.uniform(0.3, 3, centre.shape).astype(np.float32))


def test_each_head_has_its_own_frame(make_cache, queries) -> None:
    """A KV head's list is the one that it has alone, with its part of the frame."""
    n, among = 3000, Range(4, 2900, 3000)
    frame, q = frame_of(2, 64), queries(1, 2, 64)
    both = make_cache(64, "f16", "f16", 2, n)
    sketches = Sketches(both, frame)
    sketches.add(0, n)
    for j, got in enumerate(sketches.choose(q, among, 50, 60)):
        one = make_cache(64, "f16", "f16", 1, n)
        keys, values = (np.ascontiguousarray(x[:, j : j + 1]) for x in (both.k, both.v))
        append_kv(keys, values, one.segments, one.layout, 0)
        alone = Sketches(one, Frame(*(part[j : j + 1].copy() for part in frame)))
        alone.add(0, n)
        (want,) = alone.choose(q[:, j : j + 1].copy(), among, 50, 60)
        np.testing.assert_array_equal(got, want)


def test_estimates_are_of_scaled_queries(make_cache, queries) -> None:
    """With as many candidates as wanted, a list is that of the formula's estimates."""
    n = 3000
    cache, q = make_cache(64, "f16", "f16", 1, n), queries(1, 1, 64)
    sketches = Sketches(cache, frame_of(1, 64))
    sketches.add(0, n)
    (got,) = sketches.choose(q, Range(3, 2900, n), 200, 200)
    want = largest_reference(sketches.estimates(q[0]), 1, (3, 2900, n), 200, SEED)[0]
    np.testing.assert_array_equal(got, want)


def test_scales_change_what_is_near_and_no_product(make_cache, queries) -> None:
    """With one large dimension that queries do not look at, few of the best are found without."""
    n, rng = 4 * SEGMENT, np.random.default_rng(4)
    cache = make_cache(64, "f16", "f16", 1, n)
    keys = rng.standard_normal((n, 1, 64)).astype(np.float32)
    keys[..., 3] *= 60
    append_kv(keys, cache.v, cache.segments, cache.layout, 0)
    q = queries(1, 1, 64)
    q[..., 3] *= 1 / 60
    scales = np.ones((1, 64), np.float32)
    scales[0, 3] = 1 / 60
    stored = cache.stored()[0][:, 0].astype(np.float64)
    want = largest_reference((stored @ q[0, 0].astype(np.float64))[None], 1, (0, n, n), 40, SEED)[0]
    shares = []
    for frame in (None, Frame.of(np.zeros((1, 64), np.float32), scales)):
        sketches = Sketches(cache, frame)
        sketches.add(0, n)
        got = sketches.choose(q, Range(0, n, n), 40, 80)[0]
        shares.append(len(np.intersect1d(got, want)) / 40)
    assert shares[1] > 0.5 > 3 * shares[0]


def test_a_frame_of_other_keys_is_refused(make_cache, queries) -> None:
    cache = make_cache(64, "f16", "f16", 2, 100)
    sketches = Sketches(cache, Frame.plain(1, 64))
    with pytest.raises(OpsError, match=r"a frame \(1, 64\), expected \(2, 64\)"):
        sketches.choose(queries(1, 2, 64), Range(0, 100, 100), 4, 8)
