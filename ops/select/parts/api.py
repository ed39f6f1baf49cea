"""The checking wrappers of choices among the tokens of several processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ....jit.threads import n_threads
from ...arrays import F32, I64, U64
from ...errors import OpsError
from ..choice import (
    Lists,
    Range,
    SelectScratch,
    ThreadScratch,
    Wanted,
    check_columns,
    check_lists,
    check_query,
)
from ..exact.api import ExactScratch
from ..signatures.choose import SignatureScratch
from ..work import HISTOGRAM
from .arguments import Entries, LimitMemory, Limits, ListMemory, Searched, Signed, Surrounded

_SERIAL_SIGNATURES = 32_768  # as for `nearest`
_SERIAL_ENTRIES = 16_384  # to compare them costs less than waking the threads
NO_LIMIT = ~np.uint64(0)


@lazy_kernels
def _nearest(bits: int, together: int) -> DefinedKernel:
    from .kernels import make_nearest

    return make_nearest(bits, together)


@lazy_kernels
def _largest(k_type: int, v_type: int, blocks: int, together: int) -> DefinedKernel:
    from .kernels import make_largest

    return make_largest(k_type, v_type, blocks, together)


@lazy_kernel
def _limits() -> DefinedKernel:
    from .kernels import key_limits_kernel

    return key_limits_kernel


@lazy_kernel
def _list() -> DefinedKernel:
    from .kernels import list_entries_kernel

    return list_entries_kernel


@lazy_kernel
def _surround() -> DefinedKernel:
    from .kernels import surround_kernel

    return surround_kernel


class NearestScratch(SignatureScratch):
    """Memory for `nearest_entries`."""

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        self.signed = Arguments(Signed)


def nearest_entries(
    queries: U64,
    items: I64,
    bits: int,
    among: Range,
    wanted: Wanted,
    entries: U64,
    *,
    scratch: NearestScratch,
) -> None:
    """entries[h] = the k nearest of the tokens first .. last-1 of `among` to query head h, in no
    order; uint64 (H, k).

    The tokens that `nearest` chooses, with their costs (`lots`). queries uint64 (J, G); items:
    addresses of a column's segments. Raises OpsError where shapes do not fit.
    """
    s, name = scratch, "entries of the nearest signatures"
    shape = s.n_kv_heads, s.group
    if queries.shape != shape or queries.dtype != np.uint64 or bits not in (32, 64):
        raise OpsError(
            f"{name}: queries are {queries.dtype} {queries.shape} of {bits} bits, expected uint64 "
            f"{shape} of 32 or 64"
        )
    _check(name, among, wanted.k, entries, s)
    check_columns(name, among.last, items)
    s.ready(n_threads())
    parallel = (among.last - among.first) * s.n_kv_heads > _SERIAL_SIGNATURES
    signed = s.signed.fill(Signed(queries, items, s.none_taken, entries))
    choose = _nearest(bits, s.together)
    choose(signed, s.arguments.address, *among, wanted.k, wanted.seed, parallel=parallel)


class LargestScratch(ExactScratch):
    """Memory for `largest_entries`."""

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        self.searched = Arguments(Searched)


def largest_entries(
    q: F32, segments: I64, among: Range, wanted: Wanted, entries: U64, *, scratch: LargestScratch
) -> None:
    """entries[h] = the k of the tokens first .. last-1 of `among` with the largest q[h] . key, in
    no order; uint64 (H, k).

    q float32 (1, H, E). The tokens that `largest` chooses, with their costs. Where fewer than k
    products are numbers, the other entries are 2**64 - 1, which name no token. Raises OpsError
    where shapes do not fit.
    """
    s, name = scratch, "entries of the largest products"
    _check(name, among, wanted.k, entries, s)
    check_query(name, q, s, s.layout.head_dim)
    check_columns(name, among.last, segments)
    s.ready(n_threads())
    searched = s.searched.fill(Searched(q, segments, s.none_taken, entries))
    choose = _largest(*s.layout.codes, s.together)
    choose(searched, s.arguments.address, s.n_kv_heads, *among, wanted.k, wanted.seed)


class LimitScratch(ThreadScratch):
    """Memory for `key_limits` of n_parts processes, which name up to `room` entries a query head in
    all."""

    def __init__(self, n_heads: int, n_parts: int, room: int) -> None:
        self.room = room
        self.arrays = Limits(
            entries=np.empty(n_heads * room, np.uint64),
            cuts=np.zeros(n_parts + 1, np.int64),
            limits=np.empty(n_heads, np.uint64),
            within=np.empty((n_parts, n_heads), np.int64),
        )
        self.given = Arguments.fixed(self.arrays)

    def allocate(self, threads: int) -> None:
        memory = LimitMemory(
            spare=np.empty((threads, 3, self.room), np.uint64),
            histogram=aligned((threads, HISTOGRAM), np.int64),
        )
        self.memory = Arguments.fixed(memory)


def key_limits(
    parts: Sequence[U64], k: int, seed: int, *, scratch: LimitScratch
) -> tuple[U64, I64]:
    """The k-th smallest key of each query head's entries, uint64 (H,); no limit where these are not
    more than k.

    parts: the entries of each process, (H, n) each. Returns also how many of each are up to the
    limit, int64 (P, H): where these are all that a process was asked for, it may have more. Both
    are valid until the next call. Raises OpsError where shapes do not fit.
    """
    s, (entries, cuts, limits, within) = scratch, scratch.arrays
    n_heads, n = len(limits), sum(part.shape[1] for part in parts)
    alike = len(parts) == len(within) and all(len(part) == n_heads for part in parts)
    if not alike or n > s.room or k < 1:
        raise OpsError(
            f"limits of keys: entries {[part.shape for part in parts]}, {k} wanted, and room for "
            f"{s.room} of {len(within)} processes and {n_heads} heads"
        )
    n = 0
    for p, part in enumerate(parts):
        width = part.shape[1]
        entries[n * n_heads : (n + width) * n_heads] = part.reshape(-1)
        within[p], n = width, n + width
        cuts[p + 1] = n
    if n > k:
        s.ready(n_threads())
        parallel = n * n_heads > _SERIAL_ENTRIES
        _limits(s.given.address, s.memory.address, k, seed, parallel=parallel)
    else:
        limits[:] = NO_LIMIT
    return limits, within


class ListScratch(ThreadScratch):
    """Memory for `list_entries` of up to n_ctx tokens."""

    def __init__(self, n_ctx: int) -> None:
        self.n_ctx, self.entries = n_ctx, Arguments(Entries)

    def allocate(self, threads: int) -> None:
        marks = np.zeros((threads, -(-self.n_ctx // 4096) * 64), np.uint64)
        self.memory = Arguments.fixed(ListMemory(marks))


def list_entries(
    entries: U64,
    limits: U64,
    begin: int,
    among: Range,
    seed: int,
    lists: Lists,
    *,
    scratch: ListScratch,
) -> None:
    """Lists of tokens: begin .. first-1, the union of what the entries (H, n) of the query heads of
    a KV head name of first .. last-1 with keys up to limits[h], and last .. stop-1.

    Ascending, in lists.tokens[j, : counts[j]]. Entries of other tokens are passed over. Raises
    OpsError where shapes do not fit.
    """
    s, (n_heads, n), n_kv_heads = scratch, entries.shape, len(lists.counts)
    first, last, stop = among
    if limits.shape != (n_heads,) or not 0 <= begin <= first <= last <= stop <= s.n_ctx:
        raise OpsError(
            f"lists of entries: tokens {begin} to {among} of {s.n_ctx}, {entries.shape} entries, "
            f"{limits.shape} limits"
        )
    chosen = min(n * n_heads // n_kv_heads, last - first)
    check_lists("lists of entries", lists, (n_kv_heads,), first - begin + chosen + stop - last)
    s.ready(n_threads())
    given = s.entries.fill(Entries(entries, limits, lists))
    _list(given, s.memory.address, begin, *among, seed, parallel=entries.size > _SERIAL_ENTRIES)


class SurroundScratch:
    """Memory for `surround`."""

    def __init__(self) -> None:
        self.arrays = Arguments(Surrounded)


def surround(
    chosen: Lists, begin: int, among: Range, lists: Lists, *, scratch: SurroundScratch
) -> None:
    """Lists of tokens: begin .. first-1, those of `chosen`, all of which are among first .. last-1,
    and last .. stop-1.

    Ascending, in lists.tokens[j, : counts[j]]. Raises OpsError where shapes do not fit.
    """
    first, last, stop = among
    if not 0 <= begin <= first <= last <= stop:
        raise OpsError(f"lists around others: tokens {begin} to {among}")
    (heads, room), others = chosen.tokens.shape, first - begin + stop - last
    check_lists("lists around others: those", chosen, (heads,), 0)
    check_lists("lists around others", lists, (heads,), room + others)
    _surround(scratch.arrays.fill(Surrounded(chosen, lists)), begin, *among, parallel=False)


def _check(name: str, among: Range, k: int, entries: U64, s: SelectScratch) -> None:
    """Raise OpsError unless k of the range fit the scratch and the entries."""
    first, last, _ = among
    if not 0 <= first < last <= s.n_ctx or not 1 <= k <= min(s.k, last - first):
        raise OpsError(f"{name}: {k} of tokens {first} to {last - 1}, expected up to {s.k}")
    shape = s.n_kv_heads * s.group, k
    if entries.shape != shape or entries.dtype != np.uint64:
        raise OpsError(f"{name}: entries are {entries.dtype} {entries.shape}, expected {shape}")
