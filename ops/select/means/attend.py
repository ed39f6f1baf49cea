"""Attention to blocks of tokens by their means, merged with that to the tokens that were chosen.

    score   cap(scale q . mean key_b) + log(tokens of block b that are not in the list)
    value   mean value_b

A block stands for its tokens as if they were all at their mean; one of which all are listed counts
nothing. Tokens of the open segment have no blocks. Source: the estimation zone of RetroInfer
("RetroInfer: A Vector-Storage Approach for Scalable Long-Context LLM Inference", 2025).
"""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ....jit.simd import hmax, set_f32, vexp
from ...attention.arguments import Scoring
from ...attention.decode.block import LogWeights, attend_tile, head_block, put_totals
from ...attention.decode.token import merge_blocks, put_queries
from ...attention.layout import Q8_0, SEGMENT, TILE
from ...attention.shape import shape_of
from .arguments import Memory, Tail
from .layout import BLOCK, BLOCKS, TILES

SEGMENTS = SEGMENT // BLOCKS  # whose blocks are one item of work: 1,024 rows, as in decode


@jit
def _first_from(tokens, n, least):
    """The first of n ascending tokens that is at least `least`."""
    lo, hi = 0, n
    while lo < hi:
        middle = (lo + hi) // 2
        if np.int64(tokens[middle]) < least:
            lo = middle + 1
        else:
            hi = middle
    return lo


@jit
def block_of(blocks, token):
    """The block in which a token of the segment stands; blocks: an address.

    A file may say anything: what it says is always a block, though not always of 32 tokens.
    """
    return np.int64(v.load_u8(blocks, token)) & (BLOCKS - 1)


@jit
def _weigh(tail, j, to_blocks, first, stop, left, weights, logs):
    """weights[b] = the logarithm of how many tokens of block b of segments first .. stop-1 are not
    in the list of KV head j; to_blocks: bytes from a segment's item to `blocks` of that head."""
    tokens, n = tail.lists[j], tail.counts[j]
    for b in range(BLOCKS * (stop - first)):
        left[b] = BLOCK
    for i in range(_first_from(tokens, n, first * SEGMENT), _first_from(tokens, n, stop * SEGMENT)):
        token = np.int64(tokens[i])
        segment = token // SEGMENT
        block = block_of(tail.items[segment] + to_blocks, token % SEGMENT)
        left[BLOCKS * (segment - first) + block] -= 1
    for b in range(BLOCKS * (stop - first)):
        weights[b] = logs[left[b]]


@jit
def _attend_means(shape, block, tail, to_head, first, stop, weights):
    """As `attend_block`, over the means of segments first .. stop-1."""
    for s in range(first, stop):
        base, later = tail.items[s] + to_head, tail.items[min(s + 1, stop - 1)] + to_head
        for i in range(TILES):
            to_tile = i * shape.tile_bytes
            place = weights.place + 4 * (BLOCKS * (s - first) + TILE * i)
            of_tile, fresh = LogWeights(place, 0, weights.n_rows), s == first and i == 0
            attend_tile(shape, block, base + to_tile, later + to_tile, 0, TILE, of_tile, fresh)
    put_totals(shape, block)


def make_means(blocks: int, heads: int) -> DefinedKernel:
    """Attention of up to 1,024 blocks: rows of 32 * blocks, `heads` query heads at a time."""

    @kernel
    def means_kernel(share: Share, tail: Tail, memory: Memory, scoring: Scoring, head_bytes: int):
        """Item i is the segments from SEGMENTS (i // J) on of KV head i % J.

        Reads the means, and a byte for each token of the lists."""
        shape, q, n_kv_heads = shape_of(Q8_0, Q8_0, blocks, heads), tail.q, len(tail.counts)
        group, rows, n_full = q.shape[1] // n_kv_heads, memory.blocks.sums.shape[2], len(tail.items)
        work, left = address(memory.works[share.part]), memory.left[share.part]
        logs, to_blocks = memory.weights[share.part], TILES * shape.tile_bytes
        weights = LogWeights(address(logs), 0, rows)
        item = take(share.ticket)
        while item < (n_full + SEGMENTS - 1) // SEGMENTS * n_kv_heads:
            i, j = item // n_kv_heads, item % n_kv_heads
            first, stop, head = i * SEGMENTS, min((i + 1) * SEGMENTS, n_full), j * head_bytes
            block = head_block(shape, rows // heads, scoring.softcap, work, memory.blocks, i, j)
            queries = address(q[0, j * group])
            put_queries(shape, queries, group, q.shape[2], scoring.scale, block.queries)
            _weigh(tail, j, head + to_blocks, first, stop, left, logs, memory.logs)
            _attend_means(shape, block, tail, head, first, stop, weights)
            item = take(share.ticket)

    return means_kernel


@jit
def _exp(x):
    """exp of one float32."""
    return hmax(vexp(set_f32(np.float32(x))))


def make_merge(blocks: int, heads: int) -> DefinedKernel:
    """The outputs of `make_means`, added to those of the chosen tokens."""

    @kernel
    def merge_means_kernel(share: Share, tail: Tail, memory: Memory):
        """out = (1 - w) out + w means; w: the means' share of the softmax over both."""
        shape, out, merged = shape_of(Q8_0, Q8_0, blocks, heads), tail.out, memory.blocks.merged
        n_heads, n_items = out.shape[1], (len(tail.items) + SEGMENTS - 1) // SEGMENTS
        group, part = n_heads // len(tail.counts), share.part
        for head in range(n_heads * part // share.parts, n_heads * (part + 1) // share.parts):
            j, h, row = head // group, head % group, address(merged[head])
            top, total = merge_blocks(shape, memory.blocks, j, h, n_items, row)
            most = max(top, tail.masses[head, 0])
            means = total * _exp(top - most)
            w = means / (means + tail.masses[head, 1] * _exp(tail.masses[head, 0] - most))
            for i in range(out.shape[2]):
                out[0, head, i] = out[0, head, i] * (np.float32(1.0) - w) + merged[head, i] * w

    return merge_means_kernel
