"""The checking wrappers of the sketch index: sketches of keys, and the best by their estimates."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout, stored_layout
from ...errors import OpsError
from ..choice import F32, I64, U64, Range, check_slots, check_stored
from .arguments import Keys, KeysInSlots, Query, Scan, Scratch, Wanted
from .search import Rotation, SearchScratch, check_rotation, check_search

_SERIAL_TOKENS = 4  # to sketch that cost less than waking the threads

_keys, _in_slots = Arguments(Keys), Arguments(KeysInSlots)


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


def sketch_keys(
    rotation: Rotation,
    segments: I64,
    layout: TileLayout,
    n_kv_heads: int,
    bits: I64,
    factors: I64,
    first: int,
    last: int,
) -> None:
    """Write the sketches of the stored keys of tokens first .. last-1 into two columns.

    bits, factors: base addresses of the segments of columns of rotation.bits / 8 and 2 bytes.
    """
    room = SEGMENT * min(len(segments), len(bits), len(factors))
    check_stored("sketches: tokens", first, last, room)
    keys = _keys_of(rotation, segments, layout, bits, factors)
    parallel = last - first > _SERIAL_TOKENS
    _sketch_keys(_keys.fill(keys), n_kv_heads, rotation.bits, first, last, parallel=parallel)


def sketch_slots(
    rotation: Rotation,
    segments: I64,
    layout: TileLayout,
    bits: I64,
    factors: I64,
    slots: NDArray[np.int32],
    n_tokens: int,
) -> None:
    """Write the sketches of the keys in single slots; the rest as `sketch_keys`.

    slots: int32 (J, n_tokens or more), slots of each KV head, any of them more than once.
    """
    room = SEGMENT * min(len(segments), len(bits), len(factors))
    check_slots("sketches", slots, n_tokens, room)
    keys = _keys_of(rotation, segments, layout, bits, factors)
    arguments = _in_slots.fill(KeysInSlots(keys=keys, slots=slots))
    _sketch_slots(arguments, rotation.bits, n_tokens, parallel=n_tokens > _SERIAL_TOKENS)


def _keys_of(
    rotation: Rotation, segments: I64, layout: TileLayout, bits: I64, factors: I64
) -> Keys:
    check_rotation("sketches", rotation, layout)
    works = aligned((n_threads(), 2 * rotation.bits), np.float32)
    works[:] = 0  # what rows have beyond head_dim
    return Keys(
        segments=segments,
        layout=stored_layout(layout),
        bits=bits,
        factors=factors,
        rotation=rotation.weights,
        works=works,
    )


class SketchScratch(SearchScratch):
    """Memory for `best_sketched`."""

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        sums = aligned((threads, 2, self.together, SEGMENT), np.int8)
        scan = Scan(limits=self.limits, masks=self.masks, sums=sums)
        self.arrays = Scratch(search=self.search, scan=scan)
        self.query, self.arguments = Arguments(Query), Arguments.fixed(self.arrays)


def best_sketched(
    q: F32,
    segments: I64,
    bits: I64,
    factors: I64,
    rotation: Rotation,
    among: Range,
    k: int,
    n_candidates: int,
    index: NDArray[np.uint32],
    counts: I64,
    *,
    seed: int,
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
    n_candidates = check_search("sketches", q, among, k, n_candidates, index, counts, taken, s)
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
        lists=index,
        counts=counts,
    )
    choose = _sketched(*s.layout.codes, s.bits, s.together)
    wanted = Wanted(k, n_candidates, seed)
    choose(s.query.fill(query), s.arguments.address, s.n_kv_heads, *among, *wanted)
