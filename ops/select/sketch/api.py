"""The checking wrappers of the sketch index: sketches of keys, and the best by their estimates."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout, stored_layout
from ...errors import OpsError
from ..choice import F32, I64, U64, Lists, Range, check_slots, check_stored
from ..rerank.arguments import Wanted
from .arguments import Keys, KeysInSlots, KeySums, Query, Scan, Scratch
from .search import Rotation, SearchScratch, SketchedKeys, check_rotation, check_search

_SERIAL_TOKENS = 4  # to sketch that cost less than waking the threads

_keys, _in_slots = Arguments(Keys), Arguments(KeysInSlots)
_key_sums = Arguments(KeySums)


@lazy_kernel
def _sum_keys() -> DefinedKernel:
    from .means import key_sums_kernel

    return key_sums_kernel


@lazy_kernel
def _sketch_keys() -> DefinedKernel:
    from .keys import sketch_keys_kernel

    return sketch_keys_kernel


@lazy_kernel
def _sketch_slots() -> DefinedKernel:
    from .keys import sketch_slots_kernel

    return sketch_slots_kernel


@lazy_kernels
def _sketched(k_type: int, v_type: int, blocks: int, bits: int, together: int) -> DefinedKernel:
    from .scan import make_sketch

    return make_sketch(k_type, v_type, blocks, bits, together)


def mean_keys(segments: I64, layout: TileLayout, n_kv_heads: int, first: int, last: int) -> F32:
    """The mean of the stored keys of tokens first .. last-1 of each KV head, float32 (J, E).

    Keys as stored, their rotation undone. The same for any number of threads: segments are summed
    in float32, their sums in float64.
    """
    check_stored("mean of keys: tokens", first, last, SEGMENT * len(segments))
    if first == last:
        raise OpsError(f"mean of keys: there are no tokens {first} to {last - 1}")
    n = (last - 1) // SEGMENT - first // SEGMENT + 1
    sums = aligned((n, n_kv_heads, layout.padded), np.float32)
    sums[:] = 0
    works = aligned((n_threads(), layout.padded), np.float32)
    keys = KeySums(segments=segments, layout=stored_layout(layout), sums=sums, works=works)
    _sum_keys(_key_sums.fill(keys), n_kv_heads, first, last)
    mean = sums.sum(axis=0, dtype=np.float64) / (last - first)
    return mean[:, : layout.head_dim].astype(np.float32)


def sketch_keys(
    rotation: Rotation,
    centre: F32,
    segments: I64,
    layout: TileLayout,
    bits: I64,
    factors: I64,
    first: int,
    last: int,
) -> None:
    """Write the sketches of k - centre of stored tokens first .. last-1 into two columns.

    centre: float32 (J, E). bits, factors: base addresses of the segments of columns of
    rotation.bits / 8 and 2 bytes.
    """
    room = SEGMENT * min(len(segments), len(bits), len(factors))
    check_stored("sketches: tokens", first, last, room)
    keys = _keys_of(rotation, centre, segments, layout, bits, factors)
    parallel = last - first > _SERIAL_TOKENS
    _sketch_keys(_keys.fill(keys), len(centre), rotation.bits, first, last, parallel=parallel)


def sketch_slots(
    rotation: Rotation,
    segments: I64,
    layout: TileLayout,
    bits: I64,
    factors: I64,
    slots: NDArray[np.int32],
    n_tokens: int,
) -> None:
    """Write the sketches of the keys in single slots, without a centre; the rest as `sketch_keys`.

    slots: int32 (J, n_tokens or more), slots of each KV head, any of them more than once.
    """
    room = SEGMENT * min(len(segments), len(bits), len(factors))
    check_slots("sketches", slots, n_tokens, room)
    centre = np.zeros((len(slots), layout.head_dim), np.float32)
    keys = _keys_of(rotation, centre, segments, layout, bits, factors)
    arguments = _in_slots.fill(KeysInSlots(keys=keys, slots=slots))
    _sketch_slots(arguments, rotation.bits, n_tokens, parallel=n_tokens > _SERIAL_TOKENS)


def _keys_of(
    rotation: Rotation, centre: F32, segments: I64, layout: TileLayout, bits: I64, factors: I64
) -> Keys:
    check_rotation("sketches", rotation, layout)
    if centre.ndim != 2 or centre.shape[1] != layout.head_dim:
        raise OpsError(f"sketches: a centre {centre.shape} for head_dim {layout.head_dim}")
    padded = aligned((len(centre), rotation.bits), np.float32)
    padded[:, : layout.head_dim], padded[:, layout.head_dim :] = centre, 0
    works = aligned((n_threads(), 2 * rotation.bits), np.float32)
    works[:] = 0  # what rows have beyond head_dim
    return Keys(
        segments=segments,
        layout=stored_layout(layout),
        bits=bits,
        factors=factors,
        centre=padded,
        rotation=rotation.weights,
        works=works,
    )


class SketchScratch(SearchScratch):
    """Memory for `best_sketched`."""

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        sums = aligned((threads, 2, self.together, SEGMENT), np.int8)
        limits = aligned((threads, self.masks.shape[2], 64), np.uint8)
        scan = Scan(limits=limits, masks=self.masks, sums=sums)
        self.arrays = Scratch(search=self.search, scan=scan)
        self.query, self.arguments = Arguments(Query), Arguments.fixed(self.arrays)


def best_sketched(
    q: F32,
    keys: SketchedKeys,
    among: Range,
    wanted: Wanted,
    lists: Lists,
    *,
    taken: U64 | None = None,
    scratch: SketchScratch,
) -> None:
    """Lists of tokens: the k largest q . key of each query head among candidates by estimates.

    Of `among`, the best `n_candidates` >= k estimates of each query head are candidates of all that
    share its pass (`together`), and each takes the k largest exact products; the union is the list.
    q float32 (1, H, E); the rest as `nearest`.
    """
    s = scratch
    taken = s.none_taken if taken is None else taken
    wanted = check_search("sketches", q, among, wanted, lists, taken, s)
    segments, bits, factors, rotation = keys
    if among.stop > SEGMENT * min(len(segments), len(bits), len(factors)):
        raise OpsError(f"sketches: token {among.stop - 1} lies outside the columns")
    s.ready(n_threads())
    query = Query(
        q=q,
        segments=segments,
        bits=bits,
        factors=factors,
        rotation=rotation.weights,
        taken=taken,
        lists=lists.tokens,
        counts=lists.counts,
    )
    choose = _sketched(*s.layout.codes, s.bits, s.together)
    choose(s.query.fill(query), s.arguments.address, s.n_kv_heads, *among, *wanted)
