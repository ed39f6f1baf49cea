"""Signatures of stored keys and of queries, against `ops` and the networks in float64."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.cuda_ops.select.hash import encoders, encoders_of
from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.api import append_kv
from kvarn.ops.reference.attention import read_kv
from kvarn.ops.reference.select import network_reference, pack_bits
from kvarn.ops.select import Network, hyperplanes, simhash_network

NEAR = 1e-5  # outputs this near to 0 may have either sign


def _networks(device, queries, keys, heads: int, kv_heads: int, layout: TileLayout):
    """The networks of a layer on the device."""
    layer = SimpleNamespace(queries=queries, keys=keys)
    return encoders_of({0: layer}, heads, kv_heads, layout, device)[0]


def _layer(kv: torch.Tensor, items: torch.Tensor) -> tuple[SimpleNamespace, SimpleNamespace]:
    """A layer and a column with these segments."""
    store, column = (SimpleNamespace(segments=lambda _, x=x: x) for x in (kv, items))
    return SimpleNamespace(index=0, store=store), column


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
    networks = _networks(device, queries, keys, heads, kv_heads, layout)
    unsigned, n_bytes = (np.uint32, 4) if bits == 32 else (np.uint64, 8)
    items = torch.full((2, kv_heads * 1024 * n_bytes), 249, dtype=torch.uint8, device=device)
    signs = torch.zeros(heads, dtype=torch.uint64, device=device)
    q = rng.standard_normal((heads, head_dim)).astype(np.float32)
    layer, column = _layer(torch.tensor(memory, device=device), items)
    if n_tokens == 1:
        networks.sign_token(layer, column, [start, stop], torch.tensor(q, device=device), signs)
        alone = torch.zeros_like(signs)
        networks.sign_queries(torch.tensor(q, device=device), alone)
        assert signs.tolist() == alone.tolist()
    else:
        networks.sign_keys(layer, column, start, stop)
    words = items.cpu().numpy().view(unsigned).reshape(2, kv_heads, 1024).swapaxes(0, 1)
    words = words.reshape(kv_heads, -1)
    stored = read_kv(places, layout, kv_heads, start, stop)[0]
    for j in range(kv_heads):
        _assert_signs(words[j, start:stop], stored[:, j], keys[j * len(keys) // kv_heads])
    rest = np.ascontiguousarray(np.delete(words, np.s_[start:stop], 1))
    assert (rest.view(np.uint8) == 249).all()
    if n_tokens == 1:
        of_queries = signs.cpu().numpy()
        for h in range(heads):
            network = queries[h * len(queries) // heads]
            _assert_signs(of_queries[h : h + 1], q[h : h + 1], network)


def test_signatures_of_planes_do_not_depend_on_size(device) -> None:
    """The sign of the smallest output counts; that of 0 is not positive."""
    layout, planes = TileLayout(64), simhash_network(hyperplanes(64, 32, (7, 0), "by element"))
    networks = _networks(device, (planes,), (planes,), 3, 1, layout)
    q = torch.tensor(np.random.default_rng(5).standard_normal((1, 64)), dtype=torch.float32)
    q = torch.cat((q, q * 2.0**-30, q * 0.0)).to(device)
    kv = torch.zeros((1, layout.segment_bytes(1)), dtype=torch.uint8, device=device)
    items = torch.full((1, 4096), 249, dtype=torch.uint8, device=device)
    signs = torch.full((3,), 7, dtype=torch.uint64, device=device)
    networks.sign_token(*_layer(kv, items), [0, 1], q, signs)
    large, small, none = signs.tolist()
    assert large == small != 0 and none == 0 and not items[0, :4].any()


def test_more_keys_than_a_launch_takes_have_the_same_signatures(device, monkeypatch) -> None:
    layout, first, stop = TileLayout(64, "q8_0", "f16"), 1015, 1060
    keys = np.random.default_rng(13).standard_normal((stop, 2, 64)).astype(np.float32)
    memory = np.zeros((2, layout.segment_bytes(2)), np.uint8)
    append_kv(keys, keys, memory.ctypes.data + memory.shape[1] * np.arange(2), layout, 0)
    kv, planes = (
        torch.tensor(memory, device=device),
        simhash_network(hyperplanes(64, 32, (7, 0), "by element")),
    )
    signed = []
    for rows in (48, 16):
        monkeypatch.setattr(encoders, "ROWS", rows)
        items = torch.full((2, 2 * 1024 * 4), 0x5A, dtype=torch.uint8, device=device)
        networks = _networks(device, (planes,), (planes,), 2, 2, layout)
        networks.sign_keys(*_layer(kv, items), first, stop)
        signed.append(items.cpu().numpy())
    np.testing.assert_array_equal(signed[1], signed[0])
    assert (signed[0] != 0x5A).any(1).all()


def test_refuses_in_words(device) -> None:
    rng, layout = np.random.default_rng(0), TileLayout(64, "f16", "f16")
    one, other = _learned(rng, (64, 16, 32, 32)), _learned(rng, (64, 16, 16, 32))
    with pytest.raises(CudaOpsError, match="equal hidden"):
        _networks(device, (one,), (one,), 2, 1, layout)
    with pytest.raises(CudaOpsError, match="made for 64 inputs, keys have 80"):
        _networks(device, (other,), (other,), 2, 1, TileLayout(80, "f16", "f16"))
    networks = _networks(device, (other,), (other,), 2, 1, layout)
    kv = torch.zeros((1, layout.segment_bytes(1)), dtype=torch.uint8, device=device)
    items = torch.zeros((1, 4096), dtype=torch.uint8, device=device)
    q = torch.zeros((2, 64), device=device)
    signs = torch.zeros(2, dtype=torch.uint64, device=device)
    for said, (stored, column), given in (
        ("signatures are", (kv, items[:, :9]), (q, signs)),
        ("signatures are", (kv, items), (q, signs.long())),
        ("segments are", (kv[:, 1:], items), (q, signs)),
        ("q is", (kv, items), (q[:, :9], signs)),
    ):
        with pytest.raises(CudaOpsError, match=said):
            networks.sign_token(*_layer(stored, column), [0, 1], *given)
