"""Matrix products of every type against float64 arithmetic on the same quantised numbers."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.jit.arena import Arena
from kvarn.ops.errors import OpsError
from kvarn.ops.linear import Activations, Weight, get_rows, linear
from kvarn.ops.linear.decode import MAX_TOKENS
from kvarn.ops.reference.linear import (
    linear_reference,
    quantise_activations,
    rounded_activations,
)
from kvarn.ops.reference.quants import dequantise
from kvarn.ops.types import QUANT_TYPES

from ...thread_counts import with_threads

# Columns and rows around the kernels' steps: 1 and 4 blocks of 32, 16 rows, vectors of 16.
SHAPES = {
    1: ((1, 1), (17, 172), (33, 1030), (15, 31)),
    32: ((1, 32), (15, 96), (37, 352), (16, 512)),
    256: ((1, 256), (17, 768), (32, 512)),
}
TYPES = [name for name, t in QUANT_TYPES.items() if t.treatment in ("native", "repacked")]


def product(type_name, rows, x):
    quant_type = QUANT_TYPES[type_name]
    weight = Weight.prepare(quant_type, rows, x.shape[1], type_name)
    out = np.full((len(x), len(rows)), np.nan, np.float32)
    linear(Activations(len(x), x.shape[1]).set(x), weight, out)
    return out


@pytest.mark.parametrize("type_name", TYPES)
def test_products_are_those_of_the_quantised_numbers(type_name, random_rows):
    """To float32 rounding; and no further from the exact product than twice what int8 costs."""
    quant_type = QUANT_TYPES[type_name]
    for n_rows, n_cols in SHAPES[quant_type.block]:
        rows = random_rows(type_name, n_rows, n_cols)
        weights = dequantise(quant_type, rows).astype(np.float64)
        for n_tokens in (1, 2, 9, 13):
            x = np.random.default_rng(n_tokens).normal(size=(n_tokens, n_cols)).astype(np.float32)
            out, same = product(type_name, rows, x), linear_reference(x, quant_type, rows)
            terms = np.abs(rounded_activations(x, quant_type)) @ np.abs(weights).T
            assert np.all(np.abs(out - same) <= 1e-6 * terms)
            exact = x.astype(np.float64) @ weights.T
            error, allowed = (np.sqrt(np.mean((y - exact) ** 2)) for y in (out, same))
            assert error <= 2 * allowed + 1e-6 * terms.max()


@pytest.mark.parametrize("block", [32, 256])
def test_activations_are_quantised_as_the_reference_does(block):
    """Bit for bit; with zeros, tiny and huge blocks."""
    x = np.random.default_rng(0).normal(size=(3, 512)).astype(np.float32)
    x[0, :256], x[1, :256], x[2, :256] = 0, x[1, :256] * 1e-37, x[2, :256] * 1e30
    act = Activations(3, 512)
    got = act.set(x).quantised(block)
    q, d = quantise_activations(x, block)
    np.testing.assert_array_equal(got.q[:3], q)
    np.testing.assert_array_equal(got.d[:3], d)
    if block == 32:
        sums = q.reshape(3, -1, 32).sum(axis=2) * d
        np.testing.assert_array_equal(got.s[:3], sums.astype(np.float32))
    else:
        np.testing.assert_array_equal(got.s[:3], q.reshape(3, -1, 16).sum(axis=2))


@pytest.mark.parametrize("type_name", ["F16", "Q8_0", "Q4_K"])
def test_any_number_of_threads_gives_the_same_bits(type_name, random_rows):
    # Panels of 16 rows by the four, alone and a short one; threads that take 32 rows and more.
    rows = random_rows(type_name, 1237, 512)
    x = np.random.default_rng(0).normal(size=(9, 512)).astype(np.float32)
    results = []
    for _ in with_threads(*range(1, threads.max_threads() + 1)):
        results.append([product(type_name, rows, x[:t]) for t in (9, 3, 1)])
    for others in results[1:]:
        for other, first in zip(others, results[0]):
            np.testing.assert_array_equal(other, first)
    same = linear_reference(x, QUANT_TYPES[type_name], rows)
    for out in results[0]:
        expected, atol = same[: len(out)], 1e-5 * np.abs(same).max()
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=atol)


def test_one_token_and_many_agree_to_rounding(random_rows):
    rows = random_rows("Q6_K", 20, 512)
    x = np.random.default_rng(0).normal(size=(6, 512)).astype(np.float32)
    together = product("Q6_K", rows, x)
    ones = np.concatenate([product("Q6_K", rows, x[t : t + 1]) for t in range(6)])
    np.testing.assert_allclose(together, ones, rtol=1e-5, atol=1e-5 * np.abs(together).max())


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_a_small_batch_has_the_bits_of_single_tokens(type_name, random_rows):
    rows = random_rows(type_name, 35, 768)
    x = np.random.default_rng(0).normal(size=(MAX_TOKENS, 768)).astype(np.float32)
    ones = np.concatenate([product(type_name, rows, x[t : t + 1]) for t in range(MAX_TOKENS)])
    for n_tokens in range(2, MAX_TOKENS + 1):
        np.testing.assert_array_equal(product(type_name, rows, x[:n_tokens]), ones[:n_tokens])


@pytest.mark.parametrize("repacked", [False, True])
@pytest.mark.parametrize("type_name", TYPES)
def test_vectors_alone_have_the_bits_of_single_tokens(type_name, repacked, random_rows):
    """For any number of them, over rows that are several parts for a thread."""
    quant_type, (n_rows, n_cols) = QUANT_TYPES[type_name], (272, 768)
    arena, rows = Arena() if repacked else None, random_rows(type_name, n_rows, n_cols)
    weight = Weight.prepare(quant_type, rows, n_cols, type_name, arena)
    act = Activations(9, n_cols, alone=True)
    x = np.random.default_rng(0).normal(size=(9, n_cols)).astype(np.float32)
    ones = np.empty((9, n_rows), np.float32)
    for t in range(9):
        linear(act.set(x[t : t + 1]), weight, ones[t : t + 1])
    for n_tokens in range(2, 10):
        out = np.full((n_tokens, n_rows), np.nan, np.float32)
        linear(act.set(x[:n_tokens]), weight, out)
        np.testing.assert_array_equal(out, ones[:n_tokens])


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "Q6_K"])
def test_a_large_batch_has_the_bits_of_its_parts(type_name, random_rows):
    """Over runs of columns and panels of rows that end before they are full."""
    rows = random_rows(type_name, 35, 1280)
    x = np.random.default_rng(0).normal(size=(3 * MAX_TOKENS, 1280)).astype(np.float32)
    whole = product(type_name, rows, x)
    np.testing.assert_array_equal(
        product(type_name, rows, x[: MAX_TOKENS + 1]), whole[: MAX_TOKENS + 1]
    )


def test_zero_activations_and_extreme_codes_give_no_surprise():
    """-128 in Q8_0 (no encoder writes it), all activations at full scale; and all zeros."""
    rows = np.zeros((3, 34), np.uint8)
    rows[:, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    rows[:, 2:] = np.array([-128, 127, 0], np.int8).view(np.uint8)[:, None]
    x = np.ones((4, 32), np.float32)
    for n_tokens in (1, 4):
        out = product("Q8_0", rows, x[:n_tokens])
        np.testing.assert_allclose(out, np.tile([-4096.0, 4064.0, 0.0], (n_tokens, 1)), rtol=1e-6)
        assert not product("Q8_0", rows, np.zeros((n_tokens, 32), np.float32)).any()


def test_activations_are_quantised_once_and_anew_after_set(random_rows):
    rows = random_rows("Q4_0", 16, 64)
    weight = Weight.prepare(QUANT_TYPES["Q4_0"], rows, 64)
    act, out = Activations(4, 64), np.empty((4, 16), np.float32)
    rng = np.random.default_rng(0)
    for n_tokens in (4, 1, 3):
        x = rng.normal(size=(n_tokens, 64)).astype(np.float32)
        linear(act.set(x), weight, out[:n_tokens])
        first = act.quantised(32)
        np.testing.assert_array_equal(out[:n_tokens], product("Q4_0", rows, x))
        assert act.quantised(32) is first


@pytest.mark.parametrize("type_name", TYPES)
def test_rows_are_dequantised_exactly(type_name, random_rows):
    quant_type = QUANT_TYPES[type_name]
    rows = random_rows(type_name, 9, 512)
    out = np.empty((3, 512), np.float32)
    get_rows(Weight.prepare(quant_type, rows, 512), np.array([8, 0, 8], np.int32), out)
    np.testing.assert_array_equal(out, dequantise(quant_type, rows)[[8, 0, 8]])


def test_types_without_kernels_are_re_encoded(random_rows):
    """IQ3_S through gguf-py to Q8_0: the values change by half a step of 127 at most."""
    quant_type = QUANT_TYPES["IQ3_S"]
    rows = random_rows("IQ3_S", 20, 512)
    weight = Weight.prepare(quant_type, rows, 512, "blk.0.ffn_up")
    assert (weight.treatment, weight.stored_type.name) == ("re-encoded", "Q8_0")
    exact, out = dequantise(quant_type, rows), np.empty((20, 512), np.float32)
    get_rows(weight, np.arange(20, dtype=np.int32), out)
    step = np.abs(exact.reshape(20, -1, 32)).max(axis=2, keepdims=True) / 127
    assert np.all(np.abs(out - exact).reshape(20, -1, 32) <= 0.51 * step + 127 * step * 2**-11)


def test_native_weights_stay_where_they_are(random_rows):
    rows = random_rows("Q5_K", 4, 256)
    weight = Weight.prepare(QUANT_TYPES["Q5_K"], rows, 256)
    assert weight.treatment == "native"
    assert np.shares_memory(weight.data, rows)
    assert weight.n_bytes == rows.nbytes


def test_what_does_not_fit_is_refused(random_rows):
    q8_0 = QUANT_TYPES["Q8_0"]
    weight = Weight.prepare(q8_0, random_rows("Q8_0", 4, 64), 64, "blk.0.attn_q")
    act = Activations(2, 64)
    x = np.zeros((2, 64), np.float32)
    with pytest.raises(OpsError, match="expected uint8"):
        Weight.prepare(q8_0, np.zeros((4, 67), np.uint8), 64)
    with pytest.raises(OpsError, match="multiple of 32"):
        Weight.prepare(q8_0, np.zeros((4, 68), np.uint8), 65)
    with pytest.raises(OpsError, match="I64"):
        Weight.prepare(QUANT_TYPES["I64"], np.zeros((4, 64), np.uint8), 8)
    with pytest.raises(OpsError, match="at least 1"):
        Activations(0, 64)
    with pytest.raises(OpsError, match="T <= 2"):
        act.set(np.zeros((3, 64), np.float32))
    with pytest.raises(OpsError, match="float64"):
        act.set(np.zeros((2, 64)))
    with pytest.raises(OpsError, match="another order"):
        act.set(np.zeros((64, 2), np.float32).T)
    with pytest.raises(OpsError, match=r"blk\.0\.attn_q"):
        linear(act.set(x), weight, np.empty((2, 5), np.float32))
    with pytest.raises(OpsError, match="contiguous float32"):
        linear(act.set(x), weight, np.empty((2, 4)))
    with pytest.raises(OpsError, match="found row 4"):
        get_rows(weight, np.array([4], np.int32), np.empty((1, 64), np.float32))
    with pytest.raises(OpsError, match="found out"):
        get_rows(weight, np.array([1], np.int32), np.empty((1, 32), np.float32))


@pytest.mark.skipif("NUMBA_CPU_NAME" in os.environ, reason="compiles for a CPU that was given")
def test_the_generic_variant_agrees(tmp_path, random_rows):
    """Another process with KVARN_SIMD=generic computes the same products, up to rounding."""
    names = {"Q8_0": 19, "Q6_K": 19, "IQ4_XS": 19, "Q4_0": 16}
    x = np.random.default_rng(0).normal(size=(5, 768)).astype(np.float32)
    given = {name: random_rows(name, n_rows, 768) for name, n_rows in names.items()}
    np.savez(tmp_path / "given.npz", x=x, **given)
    script = Path(__file__).with_name("products.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "KVARN_SIMD": "generic"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    other = np.load(tmp_path / "products.npz")
    for name in names:
        for x_part, got in ((x, other[name]), (x[:1], other[name + "_one"])):
            here = product(name, given[name], x_part)
            np.testing.assert_allclose(got, here, rtol=1e-5, atol=2e-6 * np.abs(here).max())
