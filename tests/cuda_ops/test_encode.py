"""Signatures of stored keys and of queries, against `ops` and the networks in float64."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.cuda_ops.select.hash import Encoders, EncodeScratch, encode
from kvarn.ops.attention import TileLayout, append_kv
from kvarn.ops.reference.attention import read_kv
from kvarn.ops.reference.select import network_reference, pack_bits
from kvarn.ops.select import Network, hyperplanes, simhash_network

NEAR = 1e-5  # outputs this near to 0 may have either sign


def _learned(rng, widths) -> Network:
    """A network of random weights whose outputs are of size 1."""
    parts = []
    for n_in, n_out in pairwise(widths):
        parts += [rng.standard_normal(n_in * n_out) / np.sqrt(n_in), rng.standard_normal(n_out)]
    return Network(np.concatenate(parts).astype(np.float32), widths)


def _assert_signs(got: np.ndarray, x: np.ndarray, network: Network) -> None:
    y = network_reference(x, network.weights, network.widths)
    both = pack_bits(y - NEAR), pack_bits(y + NEAR)
    sure = ~(both[0] ^ both[1])
    np.testing.assert_array_equal(got.astype(np.uint64) & sure, both[0] & sure)
    assert np.bitwise_count(both[0] ^ both[1]).mean() <= 1


@pytest.mark.parametrize(
    ("head_dim", "k_type", "bits", "hidden", "heads", "kv_heads", "n_tokens", "start"),
    [
        (64, "f16", 32, None, 3, 1, 1, 0),
        (80, "q8_0", 64, None, 8, 1, 17, 1015),
        (128, "q4_0", 32, 128, 4, 2, 15, 1),
        (96, "q8_0", 64, 16, 1, 1, 1, 16),
        (256, "q4_0", 64, None, 2, 2, 1, 1024),
    ],
)
def test_signatures_are_the_signs_of_the_networks(
    device, head_dim, k_type, bits, hidden, heads, kv_heads, n_tokens, start
) -> None:
    rng = np.random.default_rng(bits + head_dim)
    layout, stop = TileLayout(head_dim, k_type, "f16"), start + n_tokens
    k = rng.standard_normal((stop, kv_heads, head_dim)).astype(np.float32)
    memory = np.full((2, layout.segment_bytes(kv_heads)), 255, np.uint8)
    places = memory.ctypes.data + memory.shape[1] * np.arange(2, dtype=np.int64)
    append_kv(k, k, places, layout, 0)
    if hidden is None:
        one = simhash_network(hyperplanes(head_dim, bits, (7, 0), "by element"))
        queries = keys = (one,)
    else:
        widths = head_dim, hidden, hidden, bits
        queries = tuple(_learned(rng, widths) for _ in range(heads))
        keys = tuple(_learned(rng, widths) for _ in range(kv_heads))
    encoders = Encoders(queries, keys, device)
    scratch = EncodeScratch(heads, kv_heads, layout, 32, encoders)
    signed, unsigned = (np.int32, np.uint32) if bits == 32 else (np.int64, np.uint64)
    words = torch.full((2, kv_heads, 1024), -7, dtype=encoders.word, device=device)
    signs = torch.zeros((kv_heads, heads // kv_heads), dtype=encoders.word, device=device)
    q = rng.standard_normal((1, heads, head_dim)).astype(np.float32)
    encode(
        encoders, torch.tensor(q, device=device) if n_tokens == 1 else None,
        torch.tensor(memory, device=device), torch.tensor([start], dtype=torch.int32),
        n_tokens, signs, words, scratch=scratch,
    )  # fmt: skip
    found = words.cpu().numpy().astype(signed).view(unsigned).swapaxes(0, 1).reshape(kv_heads, -1)
    stored = read_kv(places, layout, kv_heads, start, stop)[0]
    for j in range(kv_heads):
        _assert_signs(found[j, start:stop], stored[:, j], keys[j * len(keys) // kv_heads])
    rest = np.delete(found, np.s_[start:stop], 1)
    assert (rest.view(signed) == -7).all()
    if n_tokens == 1:
        own = signs.cpu().numpy().view(unsigned).ravel()
        for h in range(heads):
            _assert_signs(own[h : h + 1], q[0, h : h + 1], queries[h * len(queries) // heads])


def test_signatures_of_planes_do_not_depend_on_size(device) -> None:
    """The sign of the smallest output counts; that of 0 is not positive."""
    layout, planes = TileLayout(64), simhash_network(hyperplanes(64, 32, (7, 0), "by element"))
    encoders = Encoders((planes,), (planes,), device)
    scratch = EncodeScratch(3, 1, layout, 1, encoders)
    q = torch.tensor(np.random.default_rng(5).standard_normal((1, 1, 64)), dtype=torch.float32)
    q = torch.cat((q, q * 2.0**-30, q * 0.0), 1).to(device)
    kv = torch.zeros((1, layout.segment_bytes(1)), dtype=torch.uint8, device=device)
    start = torch.zeros(1, dtype=torch.int32, device=device)
    signs, words = (
        torch.full(n, -7, dtype=torch.int32, device=device) for n in ((1, 3), (1, 1, 1024))
    )
    encode(encoders, q, kv, start, 1, signs, words, scratch=scratch)
    large, small, none = signs[0].tolist()
    assert large == small != 0 and none == 0 == words[0, 0, 0]


def test_refuses_in_words(device) -> None:
    rng, layout = np.random.default_rng(0), TileLayout(64, "f16", "f16")
    one, other = _learned(rng, (64, 16, 32, 32)), _learned(rng, (64, 16, 16, 32))
    with pytest.raises(CudaOpsError, match="equal hidden"):
        Encoders((one,), (one,), device)
    encoders = Encoders((other,), (other,), device)
    scratch = EncodeScratch(2, 1, layout, 4, encoders)
    kv, start = torch.zeros((1, layout.segment_bytes(1)), dtype=torch.uint8), torch.zeros(1).int()
    signs, words = torch.zeros((1, 2)).int(), torch.zeros((1, 1, 1024)).int()
    for said, given in (
        ("5 tokens", (kv, start, 5, signs, words)),
        ("signatures are", (kv, start, 1, signs, words[..., :9])),
        ("signs are", (kv, start, 1, signs.long(), words)),
        ("start is", (kv, start.long(), 1, signs, words)),
    ):
        with pytest.raises(CudaOpsError, match=said):
            encode(encoders, None, *given, scratch=scratch)
