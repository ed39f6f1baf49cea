"""The checking wrappers: choosing slots for staged tokens, attention, writing them there."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ...jit.threads import n_threads
from ..arrays import F32, I64
from ..attention.api import AttentionScratch
from ..attention.checks import check_floats
from ..attention.layout import SEGMENT
from ..attention.sinks import add_sinks
from ..attention.softmax import Softmax
from ..errors import OpsError
from .arguments import (
    SIGNED_AT_ONCE,
    Attention,
    Choice,
    Evictions,
    Outside,
    Positions,
    Protected,
    Signatures,
    Signing,
    StoredKeys,
    Writing,
)
from .signer import Signer
from .staging import Staging

LAST_POSITION = (1 << 31) - 1
# Slots, of all tokens and heads, that one thread scans in 50 us, before a second one has woken:
# 4,096 slots of 8 heads took one thread 37 us, and two of them 31 to 110 us.
_SERIAL_SLOTS = 65_536

_signing, _choice = Arguments(Signing), Arguments(Choice)
_evictions, _attention = Arguments(Evictions), Arguments(Attention)
_writing, _positions, _outside = Arguments(Writing), Arguments(Positions), Arguments(Outside)


@lazy_kernel
def _sign() -> DefinedKernel:
    from .signatures import sign_kernel

    return sign_kernel


@lazy_kernel
def _choose() -> DefinedKernel:
    from .signatures import choose_kernel

    return choose_kernel


@lazy_kernel
def _find_evictions() -> DefinedKernel:
    from .slots import evictions_kernel

    return evictions_kernel


@lazy_kernels
def _attend(k_type: int, v_type: int, blocks: int) -> DefinedKernel:
    from .chunk import make_staged

    return make_staged(k_type, v_type, blocks)


@lazy_kernel
def _write() -> DefinedKernel:
    from .slots import write_kernel

    return write_kernel


@lazy_kernel
def _set_positions() -> DefinedKernel:
    from .slots import positions_kernel

    return positions_kernel


@lazy_kernel
def _find_outside() -> DefinedKernel:
    from .slots import outside_kernel

    return outside_kernel


def _check_room(name: str, stop: int, *columns: I64) -> None:
    room = min(map(len, columns)) * SEGMENT
    if stop > room:
        raise OpsError(f"{name}: slots up to {stop - 1} do not fit in {room}: reserve more")


def _check_slots(name: str, staging: Staging, n_slots: int) -> None:
    if not 1 <= n_slots <= staging.max_slots or not staging.n_tokens:
        raise OpsError(
            f"{name}: {staging.n_tokens} staged tokens and {n_slots} slots, expected tokens and 1 "
            f"to {staging.max_slots} slots"
        )


class SlotColumns(NamedTuple):
    """The first n slots: columns of their tokens' signatures and positions."""

    signatures: Signatures
    positions: I64
    n: int


def sign_tokens(
    staging: Staging,
    segments: I64,
    signer: Signer,
    signatures: Signatures,
    start: int,
    stop: int,
) -> None:
    """Signatures of the keys in slots start .. stop-1, as stored, into columns of 4-byte words.

    segments: base addresses of K and V.
    """
    _check_room("sign_tokens", stop, segments, *signatures)
    signer.ready(n_threads())
    keys = StoredKeys(segments, staging.stored, signer.keys, signer.stride)
    signing = Signing(keys=keys, signatures=signatures)
    parallel = stop - start > SIGNED_AT_ONCE
    _sign(_signing.fill(signing), staging.n_kv_heads, start, stop, parallel=parallel)


def choose_farthest(
    staging: Staging,
    q: F32,
    signer: Signer,
    slots: SlotColumns,
    *,
    position: int,
    protected: Protected,
    by_key: bool = False,
) -> None:
    """Give each staged token, in turn, the slot whose signature is farthest from its queries.

    q float32 (T, H, E) of the staged tokens, at positions position ..; all slots are filled.
    Farthest: Hamming distance summed over the query heads of a KV head, or with `by_key` that from
    the token's own key; ties by the highest (position * 0x9E3779B1 mod 2^32) >> 16, then the lowest
    slot. Signatures and positions become the new ones; K and V follow with `write_staged`. Source:
    HashEvict, algorithm 1; by_key: its authors' code. Raises OpsError where shapes do not fit or
    every slot is protected.
    """
    s, layout, (signatures, positions, n_slots) = staging, staging.layout, slots
    check_floats("choose_farthest: q", q, (s.n_tokens, s.group * s.n_kv_heads, layout.head_dim))
    _check_room("choose_farthest", n_slots, positions, *signatures)
    _check_slots("choose_farthest", staging, n_slots)
    if not sum(protected) < n_slots <= position <= LAST_POSITION - s.n_tokens:
        raise OpsError(
            f"choose_farthest: {n_slots} slots for position {position}, expected more than the "
            f"{protected.sinks} + {protected.recent} that stay, all filled"
        )
    s.ready(n_threads())
    signer.ready(n_threads())
    choice = Choice(
        q=q,
        queries=signer.queries,
        staged=StoredKeys(s.segments, s.stored, signer.keys, signer.stride),
        signatures=signatures,
        positions=positions,
        targets=s.targets,
        scratch=s.scratch,
    )
    parallel = n_slots * s.n_kv_heads * s.n_tokens > _SERIAL_SLOTS
    choice_at = _choice.fill(choice)
    _choose(choice_at, n_slots, position, *protected, int(by_key), parallel=parallel)


def choose_oldest(staging: Staging, n_slots: int, position: int, sinks: int) -> None:
    """Give each staged token the slot of the oldest one behind the sinks.

    Position p takes slot sinks + (p - sinks) mod (n_slots - sinks): the slots hold the first
    `sinks` and the last n_slots - sinks positions. Source: StreamingLLM.
    """
    _check_slots("choose_oldest", staging, n_slots)
    if not 0 <= sinks < n_slots:
        raise OpsError(f"choose_oldest: {sinks} sinks in {n_slots} slots leave nothing to evict")
    n, first = staging.n_tokens, position - sinks
    staging.targets[:, :n] = sinks + np.arange(first, first + n) % (n_slots - sinks)


def write_staged(staging: Staging, segments: I64, positions: I64, position: int) -> None:
    """Write the staged tokens, at positions position .., into the slots chosen for them."""
    s = staging
    writing = Writing(
        staged=s.segments,
        segments=segments,
        positions=positions,
        layout=s.stored,
        targets=s.targets,
    )
    _write(_writing.fill(writing), s.n_tokens, position, parallel=False)


def staged_attention(
    staging: Staging,
    q: F32,
    segments: I64,
    n_slots: int,
    out: F32,
    *,
    softmax: Softmax,
    scratch: AttentionScratch,
) -> None:
    """Attention of the staged tokens, each over the slots as they are once it has taken its slot.

    q, out float32 (T, H, E). Call it between choosing and `write_staged`: query t sees the tokens
    in slots that staged tokens 0 .. t have not replaced, and those of 0 .. t that are not
    replaced themselves. H is that of the scratch: layers that share `staging` may differ in it.
    Bit-equal for any number of threads. Raises OpsError where shapes do not fit.
    """
    s = staging
    check_floats("staged_attention: q", q, (s.n_tokens, scratch.n_heads, s.layout.head_dim))
    check_floats("staged_attention: out", out, q.shape)
    _check_room("staged_attention", n_slots, segments)
    _check_slots("staged_attention", staging, n_slots)
    scratch.ready(n_threads())
    evictions = _evictions.fill(Evictions(targets=s.targets, evicted_by=s.evicted_by))
    _find_evictions(evictions, s.n_tokens, n_slots, s.first_staged, parallel=False)
    size = 0 if softmax.sinks is None else s.n_tokens
    softmaxes = np.empty((size, scratch.n_heads, 2), np.float32)
    attention = Attention(
        q=q,
        segments=segments,
        staged=s.segments,
        evicted_by=s.evicted_by,
        out=out,
        works=scratch.chunk_works,
        newest=scratch.newest,
        softmaxes=softmaxes,
    )
    attend = _attend(*s.layout.codes)
    attend(_attention.fill(attention), s.n_kv_heads, n_slots, s.first_staged, *softmax.scoring)
    if softmax.sinks is not None:
        add_sinks(out, softmaxes, softmax.sinks)


def set_positions(positions: I64, n_kv_heads: int, slot: int, position: int, count: int) -> None:
    """Slots slot .. slot+count-1 of every head hold positions position .. position+count-1."""
    _check_room("set_positions", slot + count, positions)
    column = _positions.fill(Positions(positions))
    _set_positions(column, n_kv_heads, slot, position, count, parallel=False)


def outside(positions: I64, n_slots: int, first: int, stop: int, bits: NDArray[np.uint64]) -> None:
    """Bit s of bits[j]: whether slot s < n_slots of KV head j holds a position outside
    first .. stop-1. bits uint64 (J, words) of 64 slots each; reads 4 bytes a slot and KV head."""
    _check_room("outside", n_slots, positions)
    if n_slots < 1 or 64 * bits.shape[1] < n_slots or not 0 <= first <= stop:
        raise OpsError(
            f"outside: {n_slots} slots, {bits.shape} words, positions {first} to {stop - 1}, "
            "expected a bit for each slot"
        )
    arrays, parallel = Outside(positions, bits), n_slots * len(bits) > _SERIAL_SLOTS
    _find_outside(_outside.fill(arrays), n_slots, first, stop, parallel=parallel)
