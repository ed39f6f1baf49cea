"""Estimates of q . k from one bit per rotated dimension: the sketch index of `topk`.

    key    y = R k, R a random rotation;  bits: sign(y_i);  factor: f16(|k|^2 / sum |y_i|)
    q . k  is estimated by factor * sum of sign(y_i) (R q)_i, which is unbiased (RaBitQ, section 3:
           norm and correction enter only as this quotient)

The sum is looked up by half bytes in tables of int8 that the query has prepared; its rounding is a
twentieth of the estimate's own error. Of the best estimates of each query head a group's union is
scored exactly and each head takes its k best of that.

    bits     [token][padded / 8]     padded: head_dim up to a multiple of 64, 128, 256
    factors  f16 [token]
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ... import simd as v
from ...attention import shape as of
from ...attention.layout import SEGMENT
from ...attention.shape import at, read, write
from ...cache import jit
from ...simd import set_f32, store
from ...steps.define import step
from ...steps.lent import lent
from ...steps.words import take
from ..best import prune
from ..candidates import rerank
from ..dense import dense
from ..lists import clear, mark, write_list
from ..lookup import AT_ONCE, half_bytes_of, look_up
from ..masks import MASK_BYTES, WORDS, filled_words, kind_of, low_bit, trim
from ..queries import make_query_tables, pack_queries
from ..sampling import first_limits, put_order, samples
from ..scores import cost_of, float_bits, score_of
from .tables import CALL, SCRATCH


@intrinsic
def sums_64(typingctx, kind, words, tables, limits, masks, sums):
    """sums[query][64 tokens] int8 = sums over half bytes of the query's table; addresses all.

    Bit t of masks[query] = its sum is above the query's limit, int8 [query][64], the first.
    """

    def codegen(ctx, b, sig, vals):
        words, tables, limits, masks, sums = (at(b, x) for x in vals[1:])
        places = [ir.Constant(v.I64, t * kind.bits // 8) for t in range(0, 64, AT_ONCE)]
        index = list(zip(*(half_bytes_of(b, b.gep(words, [at]), kind.bits) for at in places)))
        for h in range(kind.queries):
            total: list[ir.Value] = []
            for i, half_bytes in enumerate(index):
                table = read(b, tables, h * 4 * kind.bits + 16 * i, v.vty(v.I8, 16))
                d = [look_up(b, table, x) for x in half_bytes]
                total = [b.add(x, y) for x, y in zip(total, d)] if total else d
            limit, mask = v.splat(b, read(b, limits, 64 * h, v.I8), AT_ONCE), ir.Constant(v.I64, 0)
            for i, x in enumerate(total):
                write(b, sums, SEGMENT * h + AT_ONCE * i, x)
                above = b.bitcast(b.icmp_signed(">", x, limit), ir.IntType(AT_ONCE))
                above = above if AT_ONCE == 64 else b.zext(above, v.I64)
                mask = b.or_(mask, b.shl(above, ir.Constant(v.I64, AT_ONCE * i)))
            write(b, masks, h * MASK_BYTES, mask)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n, n, n), codegen


@intrinsic
def _most_of_64(typingctx, factors):
    """The greatest of 64 f16 at an address, none of them negative: their bits are in order, too."""

    def codegen(ctx, b, sig, vals):
        bits = read(b, at(b, vals[0]), 0, v.vty(v.I16, 64))
        most = v.call(b, "llvm.vector.reduce.smax.v64i16", v.I16, bits)
        return b.fpext(b.bitcast(most, ir.HalfType()), v.F32)

    return types.float32(types.intp), codegen


@jit
def _set_limits(factors, limits, bytes_at):
    """The least sum that can reach each query's limit with the greatest factor of 64 tokens.

    int8 [query][64], the first 16 for the tokens of a segment; factors, bytes_at: addresses.
    """
    for part in range(SEGMENT // 64):
        store(bytes_at, 4 * part, _most_of_64(factors + 128 * part))
    most = v.load_f32(bytes_at, 0)
    for h in range(len(limits)):
        least = set_f32(-128.0)
        if limits[h] > 0.0:
            # Two less than needed, so that no rounding loses a token; above 127: none can.
            least = v.vmin(set_f32(limits[h]) / most, set_f32(129.0)) - set_f32(2.0)
        store(bytes_at, 64 * h, v.to_i8(least))


@jit
def _sum_segment(kind, padded, bits, bits_ahead, factors_ahead, tables, limits, masks, sums):
    """Sums and masks of a segment's tokens, all of 1,024; asks for the next one's."""
    for t in range(0, SEGMENT, 64):
        for line in range(t * padded // 8, (t + 64) * padded // 8, 64):
            v.prefetch_l1(bits_ahead, line)
        for line in range(2 * t, 2 * t + 128, 64):
            v.prefetch_l1(factors_ahead, line)
        sums_64(
            kind, bits + t * padded // 8, tables, limits + t // 64, masks + t // 8, sums + t
        )  # fmt: skip


@jit
def _collect(kind, masks, sums, factors, segment, limits, entries, seen):
    """Append the tokens of one segment's masks whose estimates reach their query's limit."""
    some = filled_words(kind, masks.ctypes.data)
    while some:
        i = low_bit(some)
        some &= some - np.uint64(1)
        h, w = i // WORDS, i % WORDS
        word, n = masks[h, w], seen[h]
        while word:
            t = 64 * w + low_bit(word)
            word &= word - np.uint64(1)
            estimate = np.float32(sums[h, t]) * v.load_half(factors, 2 * t)
            cost = cost_of(np.uint64(float_bits(estimate)))
            entries[h, n] = (cost << np.uint64(32)) | np.uint64(segment * SEGMENT + t)
            n += estimate >= limits[h]
        seen[h] = n


@jit
def _scan_sketches(
    kind, padded, bits, factors, j, first, last, n, k, seed, tables, work, limits, entries, seen,
    spare, histogram,
):  # fmt: skip
    """Best k estimates among the tokens first .. last-1 of the first n segments, per query.

    As the Hamming scan it looks at a segment's masks when the next one's are made.
    """
    bytes_at, masks, sums, order = work
    to_bits, to_factors = j * SEGMENT * (padded // 8), 2 * j * SEGMENT
    for i in range(n + 1):
        turn = i & 1
        if i < n:
            segment, ahead = order[i], order[min(i + 1, n - 1)]
            _set_limits(factors[segment] + to_factors, limits, np.int64(bytes_at.ctypes.data))
            _sum_segment(
                kind, padded, bits[segment] + to_bits, bits[ahead] + to_bits,
                factors[ahead] + to_factors, tables.ctypes.data, bytes_at.ctypes.data,
                np.int64(masks[turn].ctypes.data), np.int64(sums[turn].ctypes.data),
            )  # fmt: skip
        if i > 0:
            done = order[i - 1]
            trim(masks[1 - turn], done, first, last)
            _collect(
                kind, masks[1 - turn], sums[1 - turn], factors[done] + to_factors, done, limits,
                entries, seen,
            )  # fmt: skip
            for h in range(len(seen)):
                if seen[h] + SEGMENT > entries.shape[1]:
                    worst = prune(
                        entries[h], seen[h], k, 32, seed, spare[0], spare[1], histogram
                    )  # fmt: skip
                    seen[h], limits[h] = k, score_of(worst)


@jit
def _candidates(
    kind, padded, bits, factors, j, first, last, k, seed, tables, work, limits, entries, seen,
    spare, histogram,
):  # fmt: skip
    """entries[h][: seen[h]] = the k best estimates of each query, if there are so many."""
    for h in range(len(seen)):
        limits[h] = -np.inf
    order = work[3]
    n, _ = put_order(first, last, 1, order)
    for stride, wanted in samples(first, last, k):
        if stride:
            n, part = put_order(first, last, stride, order)
            for h in range(len(seen)):
                seen[h] = 0
            _scan_sketches(
                kind, padded, bits, factors, j, first, last, part, wanted, seed, tables, work,
                limits, entries, seen, spare, histogram,
            )  # fmt: skip
            first_limits(wanted, limits, entries, seen, spare, histogram)
    again = True
    while again:
        for h in range(len(seen)):
            seen[h] = 0
        _scan_sketches(
            kind, padded, bits, factors, j, first, last, n, k, seed, tables, work, limits, entries,
            seen, spare, histogram,
        )  # fmt: skip
        again = False
        for h in range(len(seen)):
            if seen[h] < k and limits[h] != -np.inf:
                limits[h] = -np.inf
                again = True
    for h in range(len(seen)):
        if seen[h] > k:
            prune(entries[h], seen[h], k, 32, seed, spare[0], spare[1], histogram)
            seen[h] = k


@jit
def _head(
    shape, kind, padded, q, segments, bits, factors, rotation, j, group, first, last, stop, k, few,
    seed, index, rows, turned, tables, room, work, scan, limits, entries, seen, spare, marks,
    chosen, histogram,
):  # fmt: skip
    """The list of one KV head; gives its length. `chosen` gathers the marks of all rounds."""
    together = len(seen)
    pack_queries(q, j, group, of.rotation(shape) if of.rotates_k(shape) else 0, rows)
    clear(chosen, stop)
    for g in range(0, group, together):
        for h in range(together):
            turned[0, :] = 0.0
            for i in range(q.shape[2]):
                turned[0, i] = q[0, j * group + g + h, i]
            weights = np.int64(rotation.ctypes.data)
            dense(
                np.int64(turned[0].ctypes.data), padded, weights, weights + 4 * padded * padded,
                padded, np.int64(turned[1].ctypes.data),
            )  # fmt: skip
            make_query_tables(turned[1], padded, tables[h])
        s = np.int64(work.ctypes.data)
        _candidates(
            kind, padded, bits, factors, j, first, last, few, seed, tables, scan, limits,
            entries, seen, spare, histogram,
        )  # fmt: skip
        clear(marks, stop)
        for h in range(together):
            mark(entries[h], seen[h], marks)
        n = write_list(marks, first, last, last, index) - first
        rerank(
            shape, segments, j, index[first : first + n], k, seed, rows[g : g + together], room,
            s, limits, entries, seen, spare, marks, histogram,
        )  # fmt: skip
        for w in range((last + 63) // 64):
            chosen[w] |= marks[w]
    return write_list(chosen, first, last, stop, index)


def make_sketch(k_type, v_type, blocks, padded, together):
    """The kernel for KV types, rows of 32 * blocks, `padded` bits, `together` queries at a time."""

    @step("iiiiiiiii")
    def kernel(part, parts, ticket, call, scratch, n_kv_heads, first, last, stop, k, few, seed):
        """q float32[1, H, E]; lists as the Hamming scan's, with room for `few` a query. Reads
        padded / 8 + 2 bytes a token and KV head, and the K rows of the candidates."""
        q, segments, bits, factors, rotation, index, counts = lent(call, CALL)
        (
            rows, turned, sums, rooms, works, limits, masks, near, orders, best, entries, seen,
            spare, marks, chosen, histograms,
        ) = lent(scratch, SCRATCH)  # fmt: skip
        scan = limits[part], masks[part], near[part], orders[part]
        j = take(ticket)
        while j < n_kv_heads:
            counts[j] = _head(
                of.shape_of(k_type, v_type, blocks, together), kind_of(padded, together), padded, q,
                segments, bits, factors, rotation, j, q.shape[1] // n_kv_heads, first, last, stop,
                k, few, np.uint32(seed), index[j], rows[part], turned[part], sums[part],
                rooms[part].ctypes.data, works[part], scan, best[part], entries[part], seen[part],
                spare[part], marks[part], chosen[part], histograms[part],
            )  # fmt: skip
            j = take(ticket)

    return kernel
