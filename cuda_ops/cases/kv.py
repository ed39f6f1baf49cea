"""Keys and values: appending, attention of a token and of chunks, signatures and lists."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from ...ops.attention.layout import TILE, TileLayout
from ...ops.select import Network, sketch_bits
from .. import append
from ..attention import prefill, prefill_kernels, token, token_kernels
from ..attention.tiles import rotation_constants, tile_constants
from ..select import lists
from ..select.hash import choice, encoders, kernels
from ..select.sketch import choice as sketch
from ..select.sketch import kernels as by_sketch
from ..select.sketch import keys
from .case import Case, types_of

HEADS, GROUP = 8, 4  # KV heads and query heads of each, where a case does not say
OLD = ("75", "gfx1100")  # `launch_options` gives these less to hold
NEW = ("80", "86", "89", "90", "120")

_ATTEND = (
    "q:*fp32 kv:*u8 index:*i32 counts:*i32 log_weights:*fp32 partial:*fp32 maxima:*fp32 sums:*fp32 "
    "scale:fp32 softcap:fp32 window:i32 room:i32 n_parts:i32 weights_room:i32"
)
_MERGE = "partial:*fp32 maxima:*fp32 sums:*fp32 counts:*i32 out:*fp32 window:i32 n_parts:i32"
_APPEND = "k:*fp32 v:*fp32 centre:*fp32 kv:*u8 start:*i32 n_tokens:i32 room:i32"
_UNPACK = "kv:*u8 keys:*fp16 values:*fp16 first:i32 n_tokens:i32 room:i32"
_CHUNK = (
    "q:*fp32 keys:*fp16 values:*fp16 out:*fp32 first:i32 start:i32 n_rows:i32 room:i32 window:i32 "
    "scale:fp32 softcap:fp32"
)
_ENCODE = (
    "q:*fp32 kv:*u8 start:*i32 q_networks:*fp32 k_networks:*fp32 signs:{0} words:{0} work:*fp32 "
    "n_tokens:i32"
)
_NEAREST = "words:{0} queries:{0} among:*i32 seed:i32 n_lots:i32 limits:*i32"
_FOUND = " bits:*i32 totals:*i32 candidates:*i32 n_candidates:*i32"
_SKETCH = (
    "kv:*u8 start:*i32 centre:*fp32 rotation:*fp32 bits:*u8 factors:*fp16 work:*fp32 n_tokens:i32 "
    "room:i32"
)
_PREPARE = (
    "q:*fp32 rotation:*fp32 bits:*u8 factors:*fp16 among:*i32 rows:*fp32 work:*fp32 tables:*i16 "
    "limits:*i32 n_found:*i32 n_listed:*i32 most:i32"
)
_SCAN_SKETCHES = (
    "bits:*u8 factors:*fp16 tables:*i16 among:*i32 limits:*i32 marks:*i32 chosen:*i32 totals:*i32 "
    "found:*i64 n_found:*i32 room:i32"
)
_NARROW = (
    "bits:*u8 factors:*fp16 tables:*i16 among:*i32 marks:*i32 found:*i64 n_found:*i32 listed:*i32 "
    "n_listed:*i32 seed:i32 n_segments:i32 room:i32 list_room:i32 most:i32"
)
_RERANK = "kv:*u8 rows:*fp32 listed:*i32 n_listed:*i32 scored:*i64 list_room:i32"
_SETTLE = (
    "scored:*i64 n_listed:*i32 among:*i32 chosen:*i32 totals:*i32 seed:i32 n_segments:i32 "
    "list_room:i32 most:i32"
)
_PLACE = "bits:*i32 among:*i32 totals:*i32 used:*i32 index:*i32 counts:*i32 room:i32"


def attend(
    kv_type: str, head_dim: int, group: int, listed: bool, old: bool = False, extra: bool = False
) -> Case:
    """`attend_kernel` over lists, or over a range; extra: with log weights and a soft cap."""
    layout = TileLayout(head_dim, kv_type, kv_type)
    step, options = token.launch_options(layout, old)
    given = {"LISTED": listed, "WEIGHTED": extra, "CAPPED": extra}
    return Case(
        f"attention, {'lists' if listed else 'all'}, {kv_type} {group}x{head_dim}"
        + ", weights and cap" * extra
        + ", old" * old,
        token_kernels.attend_kernel,
        types_of(_ATTEND),
        token.attend_constants(layout, HEADS, group, step) | given,
        options["num_warps"],
        ("room",),
        step,
        may_spill=() if head_dim == 64 else OLD,
        stages=options["num_stages"],
        only=OLD if old else NEW,
    )


def merge(kv_type: str, head_dim: int) -> Case:
    """`merge_kernel` of lists."""
    constants = token.merge_constants(TileLayout(head_dim, kv_type, kv_type), GROUP)
    return Case(
        f"merge, {kv_type} {head_dim}",
        token_kernels.merge_kernel,
        types_of(_MERGE),
        constants | {"LISTED": True},
        token.MERGE_WARPS,
    )


def appending(kv_type: str, head_dim: int, together: int) -> Case:
    """`append_kernel` for one token, or for many; keys of q4_0 have a centre."""
    layout = TileLayout(head_dim, kv_type, kv_type)
    return Case(
        f"append, {kv_type} {head_dim}, {'1 token' if together == 1 else 'tokens'}",
        append.append_kernel,
        types_of(_APPEND),
        tile_constants(layout, HEADS)
        | rotation_constants(layout)
        | {"CENTRED": kv_type == "q4_0", "TOKENS": together},
        append.warps_of(layout, together),
        fuses=False,
    )


def unpack(kv_type: str, head_dim: int) -> Case:
    """`unpack_kernel`: tiles to f16."""
    layout = TileLayout(head_dim, kv_type, kv_type)
    return Case(
        f"unpack, {kv_type} {head_dim}",
        prefill_kernels.unpack_kernel,
        types_of(_UNPACK),
        tile_constants(layout, HEADS) | rotation_constants(layout) | {"TOKENS": prefill.TOKENS},
        prefill.unpack_warps(layout),
        ("room",),
    )


def chunk(head_dim: int, old: bool = False) -> Case:
    """`chunk_kernel` with a soft cap."""
    constants, options = prefill.chunk_constants(
        HEADS * GROUP, HEADS, head_dim, capped=True, old=old
    )
    return Case(
        f"chunk, {head_dim}" + ", old" * old,
        prefill_kernels.chunk_kernel,
        types_of(_CHUNK),
        constants,
        options["num_warps"],
        ("room",),
        may_spill=() if head_dim == 64 else OLD,
        stages=options["num_stages"],
        only=OLD if old else NEW,
    )


def encoding(kv_type: str, head_dim: int, bits: int, hidden: int, together: int) -> Case:
    """`encode_kernel` with queries and one key, or `together` keys; hidden 0: SimHash."""
    widths = (head_dim, hidden, hidden, bits) if hidden else (head_dim, bits)
    n_weights = sum((n + 1) * m for n, m in pairwise(widths))
    network = (Network(np.zeros(n_weights, np.float32), widths),)
    made = encoders.Encoders(network, network, torch.device("cpu"))
    layout = TileLayout(head_dim, kv_type, kv_type)
    scratch = encoders.EncodeScratch(HEADS * GROUP, HEADS, layout, together, made)
    heads = HEADS * GROUP if together == 1 else 0
    return Case(
        f"encode, {kv_type} {head_dim}, {bits} bits, {len(widths) - 1} layers, {together} keys",
        encoders.encode_kernel,
        types_of(_ENCODE.format(f"*i{bits}")),
        scratch.constants | {"H": heads, "ROWS": together},
        fuses=False,
    )


def choosing(bits: int) -> tuple[Case, ...]:
    """The three kernels of `nearest`, the last one for both kinds of GPU."""
    given, group = types_of(_NEAREST.format(f"*i{bits}")), {"G": GROUP, "BITS": bits}
    found = given | types_of(_FOUND.strip())
    sample = {"SAMPLE": kernels.SAMPLE, "ENOUGH": kernels.ENOUGH}
    warps, blocks = choice.WARPS, ((choice.BLOCK, NEW), (choice.OLD_BLOCK, OLD))
    return (
        Case(f"sample, {bits} bits", kernels.sample_kernel, given, group | sample, warps["sample"]),
        Case(
            f"scan, {bits} bits", kernels.scan_kernel, found | {"room": "i32"}, group,
            also_16=("room",), per_step=1024,
        ),
        *(
            Case(
                f"settle, {bits} bits" + ", old" * (only is OLD), kernels.settle_kernel,
                found | {"n_segments": "i32", "room": "i32"}, group | {"J": HEADS, "BLOCK": block},
                warps["settle"], ("room",), may_spill=(), only=only,
            )
            for block, only in blocks
        ),
    )  # fmt: skip


def sketching(kv_type: str, head_dim: int, together: int) -> Case:
    """`sketch_kernel` for one key of each KV head, or for many."""
    layout = TileLayout(head_dim, kv_type, kv_type)
    bits = {"BITS": sketch_bits(head_dim)}
    return Case(
        f"sketch, {kv_type} {head_dim}, {together} keys",
        keys.sketch_kernel,
        types_of(_SKETCH),
        keys.key_constants(layout, HEADS) | bits | {"ROWS": together},
        also_16=("room",),
        fuses=False,
    )


def mean(kv_type: str, head_dim: int) -> Case:
    """`sums_kernel` of `mean_keys`."""
    constants = keys.key_constants(TileLayout(head_dim, kv_type, kv_type), HEADS)
    return Case(
        f"mean of keys, {kv_type} {head_dim}",
        keys.sums_kernel,
        types_of("kv:*u8 sums:*fp32 first:i32 last:i32"),
        constants | {"TILE": TILE},
        fuses=False,
    )


def sketched(kv_type: str, head_dim: int, group: int) -> tuple[Case, ...]:
    """The five kernels of `best_sketched`."""
    layout = TileLayout(head_dim, kv_type, kv_type)
    constants = sketch.choice_constants(layout, HEADS, group)
    kernels = {
        "prepare": (by_sketch.prepare_kernel, _PREPARE),
        "scan": (by_sketch.scan_kernel, _SCAN_SKETCHES),
        "narrow": (by_sketch.narrow_kernel, _NARROW),
        "rerank": (by_sketch.rerank_kernel, _RERANK),
        "settle": (by_sketch.settle_kernel, _SETTLE),
    }
    return tuple(
        Case(
            f"sketches, {name}, {kv_type} {group}x{head_dim}",
            kernel,
            types_of(types),
            constants[name],
            sketch.WARPS[name],
            fuses=False,
        )
        for name, (kernel, types) in kernels.items()
    )


KV: tuple[Case, ...] = (
    *(
        attend(kv_type, head_dim, group, listed)
        for kv_type, head_dim, group, listed in (
            ("q8_0", 64, 4, True),
            ("q8_0", 64, 4, False),
            ("f16", 64, 4, True),
            ("q4_0", 64, 4, True),
            ("q8_0", 128, 8, True),
            ("f16", 128, 4, True),
            ("q4_0", 128, 8, False),
            ("q8_0", 256, 8, True),
            ("f16", 256, 8, True),
        )
    ),
    attend("q8_0", 128, 4, True, extra=True),
    *(attend(kv_type, 64, 4, True, old=True) for kv_type in ("f16", "q8_0", "q4_0")),
    merge("q8_0", 64),
    merge("q4_0", 256),
    *(
        appending(kv_type, head_dim, together)
        for kv_type, head_dim, together in (
            ("q8_0", 64, 1),
            ("q4_0", 128, 1),
            ("f16", 64, append.TOKENS),
            ("q8_0", 128, append.TOKENS),
            ("q4_0", 256, append.TOKENS),
        )
    ),
    unpack("q8_0", 64),
    unpack("q4_0", 256),
    *(chunk(head_dim, old) for head_dim in (64, 128, 256) for old in (False, True)),
    encoding("q8_0", 64, 32, 128, 1),
    encoding("q8_0", 128, 32, 0, 1),
    encoding("q4_0", 128, 64, 128, encoders.KEYS),
    *choosing(32),
    *choosing(64),
    sketching("q8_0", 64, 1),
    sketching("q4_0", 128, keys.KEYS),
    mean("q4_0", 128),
    *sketched("q8_0", 64, 4),
    *sketched("q4_0", 128, 3),
    *sketched("f16", 256, 8),
    Case("place", lists.place_kernel, types_of(_PLACE), {"SEGMENTS": 1024}),
)
