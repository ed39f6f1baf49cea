"""The checking wrappers that index keys: their mean and variance, and their sketches."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel
from ....jit.threads import n_threads
from ...arrays import F32, I64
from ...attention.layout import SEGMENT, TileLayout, stored_layout
from ...errors import OpsError
from ..choice import IN_ORDER, check_slots, check_stored
from .arguments import Frame, Keys, KeySums, Rotation, SketchedKeys, sketch_bits

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


def key_moments(
    segments: I64, layout: TileLayout, n_kv_heads: int, first: int, stop: int
) -> tuple[F32, F32]:
    """Mean and variance of the stored keys of tokens first .. stop-1 of each KV head, float32
    (J, E) each.

    Keys as stored, their rotation undone. The same for any number of threads: segments are summed
    in float32, their sums in float64.
    """
    check_stored("moments of keys: tokens", first, stop, SEGMENT * len(segments))
    if first == stop:
        raise OpsError(f"moments of keys: there are no tokens {first} to {stop - 1}")
    n = (stop - 1) // SEGMENT - first // SEGMENT + 1
    sums, squares = (aligned((n, n_kv_heads, layout.padded), np.float32) for _ in range(2))
    sums[:], squares[:] = 0, 0
    works = aligned((n_threads(), layout.padded), np.float32)
    keys = KeySums(segments, stored_layout(layout), sums, squares, works)
    _sum_keys(_key_sums.fill(keys), n_kv_heads, first, stop)
    return moments_of(sums.sum(0, np.float64), squares.sum(0, np.float64), stop - first, layout)


def moments_of(
    sums: NDArray[np.float64], squares: NDArray[np.float64], n: int, layout: TileLayout
) -> tuple[F32, F32]:
    """Mean and variance of n keys, from the sums of them and of their squares (J, E or more)."""
    mean = sums[:, : layout.head_dim] / n
    variance = np.maximum(squares[:, : layout.head_dim] / n - mean * mean, 0.0)
    return mean.astype(np.float32), variance.astype(np.float32)


def sketch_keys(keys: SketchedKeys, layout: TileLayout, first: int, stop: int) -> None:
    """Write the sketches of the stored keys of tokens first .. stop-1 into their two columns."""
    room = SEGMENT * min(len(keys.segments), len(keys.bits), len(keys.factors))
    check_stored("sketches: tokens", first, stop, room)
    _sketch(keys, layout, IN_ORDER, first, stop)


def sketch_slots(
    keys: SketchedKeys, layout: TileLayout, slots: NDArray[np.int32], n_tokens: int
) -> None:
    """Write the sketches of the keys in single slots.

    slots: int32 (J, n_tokens or more), slots of each KV head, any of them more than once.
    """
    room = SEGMENT * min(len(keys.segments), len(keys.bits), len(keys.factors))
    check_slots("sketches", slots, n_tokens, room)
    _sketch(keys, layout, slots, 0, n_tokens)


def check_frame(name: str, frame: Frame, n_kv_heads: int, bits: int) -> None:
    """Raise OpsError unless the frame is one of keys of so many KV heads and bits."""
    if frame.scales.shape != (n_kv_heads, bits):
        raise OpsError(f"{name}: a frame {frame.scales.shape}, expected {(n_kv_heads, bits)}")


def _sketch(
    keys: SketchedKeys, layout: TileLayout, slots: NDArray[np.int32], first: int, stop: int
) -> None:
    n_bits, n_kv_heads = keys.rotation.bits, len(keys.frame.scales)
    check_rotation("sketches", keys.rotation, layout)
    check_frame("sketches", keys.frame, n_kv_heads, n_bits)
    works = aligned((n_threads(), 2 * n_bits), np.float32)
    works[:] = 0  # what rows have beyond head_dim
    arrays = Keys(keys.segments, stored_layout(layout), keys, slots, works)
    parallel = stop - first > _SERIAL_TOKENS
    _sketch_keys(_keys.fill(arrays), n_kv_heads, n_bits, first, stop, parallel=parallel)
