"""Rows laid out side by side: where their bytes are, and that products do not change by it."""

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.jit.arena import Arena
from kvarn.ops.linear import Activations, Weight, get_rows, linear
from kvarn.ops.linear.decode import MAX_TOKENS
from kvarn.ops.reference.linear import linear_reference, rounded_activations
from kvarn.ops.reference.quants import dequantise
from kvarn.ops.types import QUANT_TYPES

from ...thread_counts import with_threads

# Two bytes, four and one before the words; with and without fifth bits; tables.
TYPES = ["Q4_0", "Q5_1", "MXFP4"]


def prepared(type_name, rows, n_cols):
    return Weight.prepare(QUANT_TYPES[type_name], rows, n_cols, type_name, Arena())


def product(weight, x):
    out = np.full((len(x), weight.n_rows), np.nan, np.float32)
    linear(Activations(len(x), x.shape[1]).set(x), weight, out)
    return out


def normal(n_tokens, n_cols):
    return np.random.default_rng(0).normal(size=(n_tokens, n_cols)).astype(np.float32)


@pytest.mark.parametrize("type_name", [*TYPES, "Q4_1", "Q5_0"])
def test_elements_of_sixteen_rows_stand_side_by_side(type_name, random_rows):
    rows, n_bytes = random_rows(type_name, 48, 96), QUANT_TYPES[type_name].n_bytes
    weight = prepared(type_name, rows, 96)
    assert weight.treatment == "repacked"
    assert weight.interleaved is not None
    head = n_bytes % 4 or 4
    blocks = rows.reshape(3, 16, 3, n_bytes).swapaxes(1, 2)
    words = blocks[..., head:].reshape(3, 3, 16, -1, 4).swapaxes(2, 3)
    parts = [blocks[..., :head].reshape(3, 3, -1), words.reshape(3, 3, -1)]
    np.testing.assert_array_equal(weight.interleaved, np.concatenate(parts, axis=2).ravel())


@pytest.mark.parametrize("type_name", TYPES)
def test_products_are_those_of_the_quantised_numbers(type_name, random_rows):
    """To float32 rounding; over one panel and several, one block and several."""
    quant_type = QUANT_TYPES[type_name]
    for n_rows, n_cols in ((16, 32), (80, 352)):
        rows = random_rows(type_name, n_rows, n_cols)
        weight, weights = prepared(type_name, rows, n_cols), dequantise(quant_type, rows)
        for n_tokens in (1, 2, 3, MAX_TOKENS + 3):
            x = normal(n_tokens, n_cols)
            same = linear_reference(x, quant_type, rows)
            terms = np.abs(rounded_activations(x, quant_type)) @ np.abs(weights).T
            assert np.all(np.abs(product(weight, x) - same) <= 1e-6 * terms)


@pytest.mark.parametrize("type_name", TYPES)
def test_a_token_has_the_same_bits_in_any_batch(type_name, random_rows):
    """And a large batch those of the same matrix as the file has it."""
    rows, x = random_rows(type_name, 32, 608), normal(MAX_TOKENS + 2, 608)
    weight = prepared(type_name, rows, 608)
    as_in_file = Weight.prepare(QUANT_TYPES[type_name], rows, 608, type_name)
    assert as_in_file.treatment == "native"
    whole = product(as_in_file, x)
    for n_tokens in range(1, len(x) + 1):
        np.testing.assert_array_equal(product(weight, x[:n_tokens]), whole[:n_tokens])


def test_any_number_of_threads_gives_the_same_bits(random_rows):
    # 79 panels: threads take two and more, and some of the last take fewer.
    rows, x, results = random_rows("Q4_0", 1264, 512), normal(3, 512), []
    for _ in with_threads(*range(1, threads.max_threads() + 1)):
        results.append(product(prepared("Q4_0", rows, 512), x))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    same = linear_reference(x, QUANT_TYPES["Q4_0"], rows)
    np.testing.assert_allclose(results[0], same, rtol=1e-4, atol=1e-5 * np.abs(same).max())


def test_single_rows_are_read_as_the_file_has_them(random_rows):
    rows, out = random_rows("Q4_0", 32, 64), np.empty((2, 64), np.float32)
    get_rows(prepared("Q4_0", rows, 64), np.array([31, 1], np.int32), out)
    np.testing.assert_array_equal(out, dequantise(QUANT_TYPES["Q4_0"], rows)[[31, 1]])


@pytest.mark.parametrize(("type_name", "n_rows"), [("Q4_0", 40), ("Q8_0", 32), ("Q4_K", 32)])
def test_other_rows_and_types_stay_where_they_are(type_name, n_rows, random_rows):
    rows = random_rows(type_name, n_rows, 256)
    weight = prepared(type_name, rows, 256)
    assert (weight.treatment, weight.interleaved) == ("native", None)
    assert np.shares_memory(weight.data, rows)
