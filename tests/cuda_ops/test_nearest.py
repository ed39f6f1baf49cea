"""The nearest signatures, against sorting all of them by distance, lot and hash."""

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.cuda_ops.select.hash import SignatureScratch, nearest
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.reference.select import nearest_reference
from kvarn.ops.select import Lists, Range, Wanted
from kvarn.ops.select import SignatureScratch as ScratchOnCPU
from kvarn.ops.select import nearest as nearest_on_cpu

from .sketched import sampled

SEED = 20_240_517


def _column(signatures, stop: int, n_segments: int) -> np.ndarray:
    """[segment][kv_head][token]; an end that no token has is 0: near to a query of 0."""
    column = np.zeros((len(signatures), n_segments * SEGMENT), np.uint64)
    column[:, :stop] = signatures[:, :stop]
    return column.reshape(len(signatures), -1, SEGMENT).swapaxes(0, 1)


def _choose(device, queries, signatures, bits, among, scratch) -> list[np.ndarray]:
    """The lists of the kernels."""
    n_kv_heads, stop = len(queries), among[2]
    words = _column(signatures, stop, scratch.marks.n_segments)
    items = np.ascontiguousarray(words.astype(f"u{bits // 8}")).view(np.uint8)
    items, signs = (
        torch.tensor(x, device=device) for x in (items.reshape(len(items), -1), queries)
    )
    index = torch.full((n_kv_heads, stop), -1, dtype=torch.int32, device=device)
    counts = torch.zeros(n_kv_heads, dtype=torch.int32, device=device)
    first, last, stop, k = among
    nearest(
        signs,
        items,
        bits,
        Range(first, last, stop),
        Wanted(k, k, SEED),
        Lists(index, counts),
        scratch=scratch,
    )
    return [index[j, :n].cpu().numpy() for j, n in enumerate(counts.tolist())]


def _check(device, queries, signatures, bits, among, scratch=None) -> list[np.ndarray]:
    """The lists are those of a sort; returns them."""
    n_kv_heads, group = queries.shape
    scratch = scratch or SignatureScratch(
        n_kv_heads * group, n_kv_heads, among[2], among[3], device=device
    )
    got = _choose(device, queries, signatures, bits, among, scratch)
    want = nearest_reference(queries, signatures, bits, among[:3], among[3], SEED)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    return got


def _random(seed: int, bits: int, n_kv_heads: int, group: int, n: int):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << bits, (n_kv_heads, n + group), dtype=np.uint64)
    return words[:, :group].copy(), words[:, group:].copy()


@pytest.mark.parametrize(
    ("bits", "n_kv_heads", "group", "among"),
    [
        (32, 1, 1, (0, 1, 1, 1)),
        (64, 2, 3, (3, 70, 75, 16)),
        (32, 1, 8, (0, 1024, 1024, 1023)),
        (32, 2, 3, (15, 1023, 1025, 17)),
        (64, 1, 8, (128, 1025, 1100, 5)),
        (32, 2, 4, (5, 9000, 9001, 130)),
        (64, 1, 1, (5, 9000, 9001, 130)),
    ],
)
def test_the_nearest_are_those_of_a_sort(device, bits, n_kv_heads, group, among) -> None:
    queries, signatures = _random(group + bits, bits, n_kv_heads, group, among[2])
    _check(device, queries, signatures, bits, among)


def _from_ops(queries, signatures, bits, first: int, last: int, stop: int, k: int):
    """The lists that `ops.select.nearest` gives."""
    n_kv_heads, group = queries.shape
    kind = np.uint32 if bits == 32 else np.uint64
    words = np.ascontiguousarray(_column(signatures, stop, -(-stop // SEGMENT)).astype(kind))
    items = words.ctypes.data + words[0].nbytes * np.arange(len(words))
    index, counts = np.zeros((n_kv_heads, stop), np.uint32), np.zeros(n_kv_heads, np.int64)
    scratch = ScratchOnCPU(n_kv_heads * group, n_kv_heads, stop, k)
    nearest_on_cpu(
        queries, items, bits, Range(first, last, stop), Wanted(k, k, SEED), Lists(index, counts),
        scratch=scratch,
    )  # fmt: skip
    return [index[j, :n] for j, n in enumerate(counts)]


@pytest.mark.parametrize(
    ("bits", "near", "among"),
    [
        (32, 32, (15, 9300, 9301, 300)),
        (64, 3, (64, 3072, 3136, 100)),  # of few distances: lots and hashes decide
    ],
)
def test_lists_are_those_of_ops(device, bits, near, among) -> None:
    queries, signatures = _random(bits, bits, 2, 4, among[2])
    if near < bits:
        signatures = queries[:, :1] ^ (signatures & np.uint64((1 << near) - 1))
    scratch = SignatureScratch(8, 2, among[2], among[3], device=device)
    got = _choose(device, queries, signatures, bits, among, scratch)
    for a, b in zip(got, _from_ops(queries, signatures, bits, *among), strict=True):
        np.testing.assert_array_equal(a, b)
    # Those of every head became candidates: none was found by looking at all tokens again.
    for tokens, candidates in zip(got, scratch.candidates.tokens.cpu().numpy(), strict=True):
        chosen = tokens[(tokens >= among[0]) & (tokens < among[1])]
        assert np.isin(chosen, candidates).all()


@pytest.mark.parametrize("bits", [32, 64])
def test_equal_distances_are_decided_by_lot_and_hash(device, bits) -> None:
    n = 5000
    queries, signatures = np.zeros((1, 1), np.uint64), np.full((1, n), 7, np.uint64)
    for k in (1, 1249, 1250, n):
        _check(device, queries, signatures, bits, (0, n, n, k))


def test_a_sample_that_promises_too_much_is_corrected(device) -> None:
    """Near keys lie only where the sample looks: too few become candidates for one query."""
    n, k, far = 9000, 1500, 0xFFFF_FFFF
    signatures = np.full((1, n), far, np.uint64)
    signatures[0, sampled(0, n)] = np.arange(2048) % 3
    queries = np.array([[0, far, 1, 0xFFFF]], np.uint64)
    scratch = SignatureScratch(4, 1, n, k, device=device)
    got = _check(device, queries, signatures, 32, (0, n, n, k), scratch)
    assert len(np.setdiff1d(got[0], scratch.candidates.tokens.cpu().numpy())) > 100


def test_nearly_all_tokens_are_chosen_among_all(device) -> None:
    """The farthest token is none that a sample has."""
    n = 5000
    signatures = np.zeros((1, n), np.uint64)
    signatures[0, np.setdiff1d(np.arange(n), sampled(0, n))[7]] = 0xFFFF_FFFF
    scratch = SignatureScratch(1, 1, n, n, device=device)
    _check(device, np.zeros((1, 1), np.uint64), signatures, 32, (0, n, n, n), scratch)
    assert sorted(scratch.candidates.tokens[0, :n].tolist()) == list(range(n))


def test_a_shorter_context_forgets_a_longer_one(device) -> None:
    queries, signatures = _random(2, 32, 1, 4, 4000)
    scratch = SignatureScratch(4, 1, 4000, 800, device=device)
    for last in (4000, 130, 3000):
        _check(device, queries, signatures, 32, (0, last, last, last // 5), scratch)


def test_refuses_in_words(device) -> None:
    scratch = SignatureScratch(4, 1, 1024, 9, device=device)
    items = torch.zeros((1, 4 * SEGMENT), dtype=torch.uint8, device=device)
    queries = torch.zeros((1, 4), dtype=torch.uint64, device=device)
    tokens, counts = torch.zeros((1, 9), dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for said, changed in (
        ("2 segments", {"items": items.repeat(2, 1)}),
        ("queries are", {"queries": queries[:, :3]}),
        ("queries are", {"queries": queries.int()}),
        ("signatures are", {"bits": 64}),
        ("48 bits", {"bits": 48}),
        ("lists are", {"lists": Lists(tokens.long(), counts)}),
        ("counts are", {"lists": Lists(tokens, counts.float())}),
        ("seed is", {"wanted": Wanted(1, 1, 1 << 31)}),
    ):
        given = {"queries": queries, "items": items, "bits": 32, "among": Range(0, 9, 9)}
        given |= {"wanted": Wanted(1, 1, 0), "lists": Lists(tokens, counts)} | changed
        with pytest.raises(CudaOpsError, match=said):
            nearest(**given, scratch=scratch)
