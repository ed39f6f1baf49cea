"""The checking wrappers that index keys: their mean, and the sketches of what is left of them."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout, stored_layout
from ...errors import OpsError
from ..choice import F32, I64, IN_ORDER, check_slots, check_stored
from .arguments import Keys, KeySums, Rotation, SketchedKeys, sketch_bits

_SERIAL_TOKENS = 4  # to sketch that cost less than waking the threads

_keys, _key_sums = Arguments(Keys), Arguments(KeySums)


@lazy_kernel
def _sum_keys() -> DefinedKernel:
    from .keys import key_sums_kernel

    return key_sums_kernel


@lazy_kernel
def _sketch_keys() -> DefinedKernel:
    from .keys import sketch_keys_kernel

    return sketch_keys_kernel


def check_rotation(name: str, rotation: Rotation, layout: TileLayout) -> None:
    """Raise OpsError unless the rotation is one of keys of this layout."""
    if rotation.bits != sketch_bits(layout.head_dim):
        raise OpsError(f"{name}: a rotation of {rotation.bits} for head_dim {layout.head_dim}")


def mean_keys(segments: I64, layout: TileLayout, n_kv_heads: int, first: int, stop: int) -> F32:
    """The mean of the stored keys of tokens first .. stop-1 of each KV head, float32 (J, E).

    Keys as stored, their rotation undone. The same for any number of threads: segments are summed
    in float32, their sums in float64.
    """
    check_stored("mean of keys: tokens", first, stop, SEGMENT * len(segments))
    if first == stop:
        raise OpsError(f"mean of keys: there are no tokens {first} to {stop - 1}")
    n = (stop - 1) // SEGMENT - first // SEGMENT + 1
    sums = aligned((n, n_kv_heads, layout.padded), np.float32)
    sums[:] = 0
    works = aligned((n_threads(), layout.padded), np.float32)
    keys = KeySums(segments=segments, layout=stored_layout(layout), sums=sums, works=works)
    _sum_keys(_key_sums.fill(keys), n_kv_heads, first, stop)
    mean = sums.sum(axis=0, dtype=np.float64) / (stop - first)
    return mean[:, : layout.head_dim].astype(np.float32)


def sketch_keys(
    rotation: Rotation,
    centre: F32,
    segments: I64,
    layout: TileLayout,
    bits: I64,
    factors: I64,
    first: int,
    stop: int,
) -> None:
    """Write the sketches of k - centre of stored tokens first .. stop-1 into two columns.

    centre: float32 (J, E). bits, factors: base addresses of the segments of columns of
    rotation.bits / 8 and 2 bytes.
    """
    room = SEGMENT * min(len(segments), len(bits), len(factors))
    check_stored("sketches: tokens", first, stop, room)
    keys = SketchedKeys(segments, bits, factors, rotation)
    _sketch(keys, centre, layout, IN_ORDER, first, stop)


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
    keys = SketchedKeys(segments, bits, factors, rotation)
    _sketch(keys, centre, layout, slots, 0, n_tokens)


def _sketch(
    keys: SketchedKeys,
    centre: F32,
    layout: TileLayout,
    slots: NDArray[np.int32],
    first: int,
    stop: int,
) -> None:
    n_bits = keys.rotation.bits
    check_rotation("sketches", keys.rotation, layout)
    if centre.ndim != 2 or centre.shape[1] != layout.head_dim:
        raise OpsError(f"sketches: a centre {centre.shape} for head_dim {layout.head_dim}")
    padded = aligned((len(centre), n_bits), np.float32)
    padded[:, : layout.head_dim], padded[:, layout.head_dim :] = centre, 0
    works = aligned((n_threads(), 2 * n_bits), np.float32)
    works[:] = 0  # what rows have beyond head_dim
    arrays = Keys(keys.segments, stored_layout(layout), keys, slots, padded, works)
    parallel = stop - first > _SERIAL_TOKENS
    _sketch_keys(_keys.fill(arrays), len(centre), n_bits, first, stop, parallel=parallel)
