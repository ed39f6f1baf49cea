"""Signatures against float64 NumPy of the same network over the keys as stored."""

from itertools import pairwise

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import network_reference, pack_bits
from kvarn.ops.select import (
    Network,
    encode_heads,
    encode_keys,
    encode_rows,
    hyperplanes,
    simhash_network,
)


def _network(rng, *widths: int) -> Network:
    n = sum((a + 1) * b for a, b in pairwise(widths))
    return Network((rng.standard_normal(n) / 8).astype(np.float32), widths)


def _agree(got: np.ndarray, x: np.ndarray, network: Network) -> None:
    """Every bit whose sum is not within rounding of 0."""
    y = network_reference(x, network.weights, network.widths)
    powers = np.uint64(1) << np.arange(network.bits, dtype=np.uint64)
    bits = (got[:, None] & powers) != 0
    sure = np.abs(y) > 1e-4
    assert sure.mean() > 0.99
    np.testing.assert_array_equal(bits[sure], (y > 0)[sure])
    assert (pack_bits(y) == got).mean() > 0.9


@pytest.mark.parametrize(
    ("head_dim", "kind", "widths"),
    [
        (64, "f16", (64, 32)),
        (80, "q8_0", (80, 128, 128, 32)),
        (128, "q4_0", (128, 64)),
        (24, "q4_0", (24, 48, 64)),
        (576, "q4_0", (576, 64, 32)),
    ],
)
def test_signatures_of_stored_keys(make_cache, head_dim: int, kind: str, widths) -> None:
    cache = make_cache(head_dim, kind, kind, 2, 1100)
    network = _network(np.random.default_rng(head_dim), *widths)
    size = network.bits // 8
    column = np.zeros((2, 2, SEGMENT), np.dtype(f"u{size}"))
    items = column.ctypes.data + column[0].nbytes * np.arange(2)
    encode_keys(network, cache.segments, cache.layout, 2, items, 0, 1000)
    encode_keys(network, cache.segments, cache.layout, 2, items, 1000, 1001)  # one at a time too
    encode_keys(network, cache.segments, cache.layout, 2, items, 1001, 1100)
    got = column.swapaxes(0, 1).reshape(2, -1)[:, :1100].astype(np.uint64)
    keys, _ = cache.stored()
    for j in range(2):
        _agree(got[j], keys[:, j], network)
        rows = np.empty(1100, np.uint64)
        encode_rows(network, keys[:, j].copy(), rows)
        assert (rows == got[j]).mean() > 0.9  # rotating back rounds
    assert not column.swapaxes(0, 1).reshape(2, -1)[:, 1100:].any()


def test_hyperplanes_are_those_that_files_were_written_with() -> None:
    """Each method's order of drawing: signatures on disk are compared with those of today."""
    drawn = np.random.default_rng((7, 3)).standard_normal(48 * 80).astype(np.float32)
    by_element, by_plane = drawn.reshape(80, 48), drawn.reshape(48, 80).T
    np.testing.assert_array_equal(hyperplanes(80, 48, (7, 3), "by element"), by_element)
    np.testing.assert_array_equal(hyperplanes(80, 48, (7, 3), "by plane"), by_plane)


@pytest.mark.parametrize("bits", [4, 32, 33, 64])
def test_simhash_tells_on_which_side_of_each_plane_a_vector_lies(bits: int) -> None:
    planes = hyperplanes(80, bits, (1,), "by plane")
    x = np.random.default_rng(bits).standard_normal((50, 80)).astype(np.float32)
    signatures = np.empty(50, np.uint64)
    encode_rows(simhash_network(planes), x, signatures)
    products = x.astype(np.float64) @ planes.astype(np.float64)
    want = np.zeros((50, 64), bool)
    want[:, :bits] = products > 0
    signs = np.unpackbits(signatures.astype("<u8").view(np.uint8), bitorder="little")
    np.testing.assert_array_equal(signs.reshape(50, 64), want)
    assert np.abs(products).min() > 1e-4  # no sign is a matter of rounding


def test_refuses_in_words(make_cache) -> None:
    rng = np.random.default_rng(0)
    for words, widths in {"multiples of 16": (64, 40), "32 or 64": (64, 48)}.items():
        with pytest.raises(OpsError, match=words):
            _network(rng, *widths)
    with pytest.raises(OpsError, match=r"expected float32 \(2080,\)"):
        Network(np.zeros(5, np.float32), (64, 32))
    cache = make_cache(64, "f16", "f16", 1, 10)
    network, items = _network(rng, 64, 32), np.zeros(1, np.int64)
    with pytest.raises(OpsError, match="outside the 1024 stored"):
        encode_keys(network, cache.segments, cache.layout, 1, items, 0, 1025)
    with pytest.raises(OpsError, match="made for 80 inputs"):
        encode_keys(_network(rng, 80, 32), cache.segments, cache.layout, 1, items, 0, 1)
    with pytest.raises(OpsError, match="rows of"):
        encode_rows(network, np.zeros((2, 80), np.float32), np.zeros(2, np.uint64))


@pytest.mark.parametrize("widths", [(64, 32), (80, 128, 128, 32), (24, 48, 64)])
def test_many_rows_have_the_signatures_of_one(widths) -> None:
    rng = np.random.default_rng(len(widths))
    network = _network(rng, *widths)
    x = rng.standard_normal((37, 6, widths[0])).astype(np.float32)
    out, of_head = np.zeros((37, 6), np.uint64), np.empty(37, np.uint64)
    encode_heads(network, x, 1, 4, out)
    for head in range(1, 5):
        encode_rows(network, x[:, head].copy(), of_head)
        np.testing.assert_array_equal(out[:, head], of_head)
    assert not out[:, [0, 5]].any()
    with pytest.raises(OpsError, match="heads 4 to 6 of 6"):
        encode_heads(network, x, 4, 3, out)
