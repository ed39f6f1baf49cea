"""B (A x) against float64 arithmetic on the adapter's own numbers."""

import os

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.jit.launch import record
from kvarn.jit.variant import VARIANT
from kvarn.ops.arrays import F32
from kvarn.ops.errors import OpsError
from kvarn.ops.linear import Activations
from kvarn.ops.low_rank import LowRank, LowRankScratch, add_low_rank, thin_bytes
from kvarn.ops.low_rank.thin import PAIR, ThinMatrix

from ...programs import printed
from ...thread_counts import with_threads


def factors(rank: int, n_cols: int, n_rows: int, seed: int = 0) -> tuple[F32, F32]:
    """A (R, K) and B (N, R), whose rows have sizes from 1e-6 to 1e6."""
    rng = np.random.default_rng(seed)
    sizes = (10.0 ** rng.uniform(-6, 6, n) for n in (rank, n_rows))
    a, b = (
        (rng.normal(size=(len(size), n)) * size[:, None]).astype(np.float32)
        for size, n in zip(sizes, (n_cols, rank))
    )
    return a, b


def add(a: F32, b: F32, x: F32, out: F32) -> F32:
    """out + B (A x)."""
    out, act = out.copy(), Activations(len(x), x.shape[1])
    add_low_rank(act.set(x), [(LowRank.prepare(a, b), out)], LowRankScratch(len(x)))
    return out


# Ranks, columns and rows around panels of 16, pairs of columns and parts of 512.
SHAPES = ((1, 1, 1), (5, 33, 16), (16, 512, 37), (17, 513, 15), (33, 1025, 48), (530, 64, 31))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_the_numbers(shape: tuple[int, int, int]) -> None:
    a, b = factors(*shape)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    # A number is off by half a step: its row's largest one / 2^19 / 2.
    off_a, off_b = (
        np.abs(x).max(axis=1, keepdims=True) / 2**20 + 3e-7 * np.abs(x) for x in (wide_a, wide_b)
    )
    for n_tokens in (1, 2, 4, 7):
        rng = np.random.default_rng(n_tokens)
        x = rng.normal(size=(n_tokens, shape[1])).astype(np.float32)
        before = rng.normal(size=(n_tokens, len(b))).astype(np.float32)
        narrow, sizes = x @ wide_a.T, np.abs(x) @ (np.abs(wide_a) * shape[1] * 1e-7 + off_a).T
        exact = before + narrow @ wide_b.T
        allowed = sizes @ np.abs(wide_b).T + np.abs(narrow) @ (off_b + np.abs(b) * 1e-4).T
        found = add(a, b, x, before)
        assert np.all(np.abs(found - exact) <= allowed + 1e-6 * np.abs(before))


def test_numbers_are_rounded_to_the_nearest_of_20_bits() -> None:
    """Each row's columns come out one by one, from products with unit vectors."""
    b = np.random.default_rng(1).normal(size=(37, 9)).astype(np.float32)
    b[3], b[4, 1:] = 0, 0
    found = add(np.eye(9, dtype=np.float32), b, np.eye(9, dtype=np.float32), np.zeros((9, 37), "f"))
    step = np.abs(b).max(axis=1) / (2**19 - 1)
    assert np.all(np.abs(found.T - b) <= 0.51 * step[:, None])
    np.testing.assert_array_equal(found.T[3], 0)
    np.testing.assert_allclose(found.T[4], b[4], rtol=3e-7)


def test_vectors_have_the_bits_that_they_have_alone() -> None:
    """Among any number of others, and with any number of threads."""
    a, b = factors(21, 1030, 1237)
    x = np.random.default_rng(0).normal(size=(70, 1030)).astype(np.float32)
    before = np.random.default_rng(1).normal(size=(70, 1237)).astype(np.float32)
    alone = np.concatenate([add(a, b, x[i : i + 1], before[i : i + 1]) for i in range(70)])
    for _ in with_threads(1, threads.max_threads()):
        for n_tokens in (1, 2, 3, 4, 6, 64, 70):
            found = add(a, b, x[:n_tokens], before[:n_tokens])
            np.testing.assert_array_equal(found, alone[:n_tokens])


@pytest.mark.parametrize("n_tokens", [1, 3])
def test_adapters_of_several_matrices_are_added_in_a_recorded_graph(n_tokens: int) -> None:
    pairs = [factors(rank, 700, n, seed=rank) for rank, n in ((4, 64), (4, 32), (20, 32))]
    adapters = [LowRank.prepare(*pair) for pair in pairs]
    x = np.zeros((n_tokens, 700), np.float32)
    outs = [np.zeros((n_tokens, len(b)), np.float32) for _, b in pairs]
    act, scratch = Activations(3, 700).set(x), LowRankScratch(3)
    graph = record(lambda: add_low_rank(act, list(zip(adapters, outs)), scratch))
    for seed in (1, 2):
        x[:] = np.random.default_rng(seed).normal(size=x.shape)
        for out in outs:
            out[:] = seed
        graph.run()
        for out, (a, b) in zip(outs, pairs, strict=True):
            np.testing.assert_array_equal(out, add(a, b, x, np.full_like(out, seed)))


def test_a_recorded_graph_has_memory_for_all_threads_that_may_come() -> None:
    """Another model may be loaded with more: each thread's memory lies in what was allocated."""
    scratch, most = LowRankScratch(8), threads.max_threads()
    of_few, of_most = (scratch.buffers(16) for _ in with_threads(1, most))
    assert of_few == of_most
    (allocated,) = scratch._buffers.values()
    assert allocated.nbytes >= most * of_few.n_bytes


@pytest.mark.parametrize("shape", [(1, 1), (16, 512), (17, 513)])
def test_bytes_are_those_in_memory(shape: tuple[int, int]) -> None:
    matrix = ThinMatrix.prepare(np.ones(shape, np.float32))
    assert matrix.data.nbytes == thin_bytes(*shape)
    assert thin_bytes(16, 1024) == 16 * 4 + 512 * PAIR


def test_what_does_not_fit_is_refused() -> None:
    a, b = factors(3, 8, 5)
    x, scratch = np.zeros((2, 8), np.float32), LowRankScratch(2)
    act, adapter = Activations(2, 8).set(x), LowRank.prepare(a, b)
    for out in (np.zeros((2, 6), "f"), np.zeros((1, 5), "f"), np.zeros((2, 5)), np.zeros((5, 2)).T):
        with pytest.raises(OpsError, match="adding what adapters give: found"):
            add_low_rank(act, [(adapter, out)], scratch)
    wider = Activations(2, 9).set(np.zeros((2, 9), np.float32))
    with pytest.raises(OpsError, match=r"expected x \(T, 8\) and out \(T, 5\)"):
        add_low_rank(wider, [(adapter, np.zeros((2, 5), np.float32))], scratch)


@pytest.mark.skipif(VARIANT != "avx512", reason="compares AVX-512 with AVX2")
def test_other_cpus_compute_the_same_in_fewer_registers() -> None:
    """AVX2's halves of each vector have the same sums."""
    code = (
        "import numpy as np; from kvarn.jit.variant import VARIANT;"
        "from kvarn.ops.linear import Activations;"
        "from kvarn.ops.low_rank import LowRank, LowRankScratch, add_low_rank;"
        "r = np.random.default_rng(0); f = lambda *s: r.normal(size=s).astype('f');"
        "x, out = f(3, 530), f(3, 37); act = Activations(3, 530).set(x);"
        "add_low_rank(act, [(LowRank.prepare(f(5, 530), f(37, 5)), out)], LowRankScratch(3));"
        "print(VARIANT, out.tobytes().hex())"
    )
    found = {}
    for variant in ("avx512", "avx2"):
        made = printed(code, env=os.environ | {"KVARN_SIMD": variant})
        name, found[variant] = made.split()
        assert name == variant
    assert found["avx512"] == found["avx2"]
