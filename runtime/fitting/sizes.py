"""The bytes of weights, KV cache, indexes, states and buffers, each as kvarn allocates it."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass

from ...models.config import ModelConfig
from ...models.config.layers import ExpertsConfig
from ...models.tensors import TensorLike, is_matrix, re_encoded_bytes, repacked_bytes
from ...models.widths import widths_of
from ...models.workspace import Workspace
from ...ops.attention.layout import SEGMENT, layout_of, n_segments
from ...ops.cpu import CPU
from ...ops.types import is_repacked
from ...system.errors import KvarnError
from ..attend import Attend
from ..attend.encoders.sidecar import BITS, find_encoders
from ..attend.sparse.frame import STAGES
from ..gguf import GGUFFile
from ..store import Ram
from ..store.states import SPACING, States, positions_to_keep

_HEAD_BYTES = 80 << 10
"""Of a pack's superblocks, tables and manifest."""
_ROW_BYTES = 16
"""Of a token after the full segments, beside its keys and values."""
_NEAR = 8
"""Checkpoints of layers with a window that a pack holds near its end, for each segment of it."""


@dataclass(frozen=True)
class WeightBytes:
    """mapped: of the file, read in place, whose pages the system may drop; copied: repacked or
    re-encoded, in memory of the process; per_token: read for one token."""

    mapped: int
    copied: int
    per_token: int

    @property
    def resident(self) -> int:
        """Bytes in memory once all weights have been read."""
        return self.mapped + self.copied


def weight_bytes(tensors: Mapping[str, TensorLike], config: ModelConfig) -> WeightBytes:
    """Memory of a file's tensors. The system may drop the file's pages of copied matrices."""
    in_place = sum(
        tensor.data.nbytes for tensor in tensors.values() if not _is_copied(tensor, tensors)
    )
    copied = repacked_bytes(tensors) + re_encoded_bytes(tensors)
    tied = "output.weight" not in tensors
    n_drafting = tuple(f"blk.{config.n_layers + i}." for i in range(config.n_drafting))
    per_token = 0.0
    for name, tensor in tensors.items():
        if len(tensor.shape) < 2 or name.startswith(n_drafting):
            continue
        if name.startswith("per_layer_token_embd") or (name == "token_embd.weight" and not tied):
            continue  # a token reads one row
        per_token += tensor.data.nbytes * _share_read(tensor, config)
    return WeightBytes(in_place, copied, round(per_token))


def _is_copied(tensor: TensorLike, tensors: Mapping[str, TensorLike]) -> bool:
    if tensor.type.treatment == "re-encoded":
        return True
    looked_up = tensor.name == "token_embd.weight" and "output.weight" in tensors
    return is_matrix(tensor) and not looked_up and is_repacked(tensor.type, tensor.shape[-2])


def _share_read(tensor: TensorLike, config: ModelConfig) -> float:
    """The share of a matrix that one token reads: of experts, those that it takes."""
    if is_matrix(tensor):
        return 1.0
    feed_forward = config.layers[int(tensor.name.split(".")[1])].feed_forward
    if not isinstance(feed_forward, ExpertsConfig):
        return 1.0
    return feed_forward.routing.n_used / feed_forward.routing.n_experts


def kv_bytes(config: ModelConfig, kv: tuple[str, str], n_ctx: int) -> int:
    """Bytes of a context's keys and values in memory."""
    return Ram(*kv).empty(config).bytes_for(n_ctx)


def state_bytes(config: ModelConfig, n_ctx: int) -> int:
    """Bytes of recurrent layers' states and checkpoints after a prompt of `n_ctx` tokens.

    The end of the prompt is pinned."""
    if not config.state_shapes:
        return 0
    states = States(config.state_shapes)
    places = [*range(SPACING, n_ctx, SPACING), n_ctx]
    n_kept = len(positions_to_keep(places, {n_ctx}, n_ctx, states.most))
    return states.memory.nbytes * (2 + n_kept)


def index_items(file: GGUFFile, config: ModelConfig, attend: Attend, n_ctx: int) -> dict[str, int]:
    """Bytes that a method keeps of a token and KV head, by the parts of its index.

    Raises `KvarnError` for a method whose index has a size that depends on its options.
    """
    from ...ops.select import Rotation, means_item_bytes

    name = attend.name
    if name == "full" or (name == "auto" and n_ctx <= getattr(attend, "full_up_to", 0)):
        return {}
    if name == "hash":
        learned = find_encoders(file)
        return {"signatures": (learned.bits if learned is not None else BITS[0]) // 8}
    if name not in ("topk", "auto"):
        raise KvarnError(
            f"what {name} takes cannot be told ahead: the size of its index depends on its options"
        )
    bits = Rotation.random(config.head_dim, 0).bits
    items = {"sketches": bits // 8, "factors": 2, "frame": 1}
    if name == "auto":
        items["means"] = means_item_bytes(config.head_dim)
    return items


def index_bytes(config: ModelConfig, items: Mapping[str, int], n_ctx: int) -> int:
    """Bytes of an index in memory: whole segments of all layers."""
    per_token = config.n_kv_layers * config.n_kv_heads * sum(items.values())
    return n_segments(n_ctx) * SEGMENT * per_token


def buffer_bytes(config: ModelConfig, kv: tuple[str, str], n_ctx: int) -> int:
    """Bytes of the buffers that the forward pass and exact attention allocate."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    made: list[object] = [Workspace(config, CPU, CPU.chunk, widths_of(config))]
    heads = {(x.n_heads, x.n_kv_heads, x.head_dim) for x in config.attention_layers}
    made += [CPU.attention_scratch(h, j, layout_of(e, *kv), CPU.chunk, n_ctx) for h, j, e in heads]
    n_bytes = tracemalloc.get_traced_memory()[0] - before
    if not was_tracing:
        tracemalloc.stop()
    made.clear()
    return n_bytes + 4 * config.n_vocab


def disk_bytes(
    config: ModelConfig, kv: tuple[str, str], items: Mapping[str, int], n_ctx: int
) -> int:
    """The most bytes that a pack of `n_ctx` tokens takes on disk.

    It has full segments, of each layer in slots of whole pages; states; and the tokens after the
    last full segment, in up to two files."""
    from ..store.disk.folder import stride_of

    store = Ram(*kv).empty(config)
    n, n_layers = n_ctx // SEGMENT, config.n_kv_layers
    n_whole = n_layers if store.windowed is None else len(store.windowed.whole)
    whole = n_whole * stride_of(store.segment_bytes // max(1, n_whole))
    row, apart = store.segment_bytes // SEGMENT + _ROW_BYTES, state_bytes(config, n_ctx)
    if (windowed := store.windowed) is not None:
        row += windowed.rows.n_bytes
        slots = min(n, _NEAR * windowed.n_before) + n_ctx // windowed.every
        apart += slots * min(windowed.window, SEGMENT) * windowed.rows.n_bytes
    columns = 0
    for part, size in items.items():
        slot = stride_of(SEGMENT * config.n_kv_heads * n_layers * size)
        columns += slot * (n + (_earlier_frames(n) if part in ("sketches", "factors") else 0))
    tails = 2 * SEGMENT if n else n_ctx
    return n * whole + tails * row + columns + apart + 4 * n_ctx + _HEAD_BYTES


def _earlier_frames(n: int) -> int:
    """Segments of the sketches in frames that a pack of `n` segments had before: files keep
    them."""
    return sum(later - 1 for later in STAGES[1:] if later <= n)


def tokens_in(config: ModelConfig, kv: tuple[str, str], n_bytes: int) -> int:
    """How many tokens of context have room in `n_bytes`."""
    return Ram(*kv).empty(config).tokens_in(max(0, math.floor(n_bytes)))
