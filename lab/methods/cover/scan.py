"""Coverage: each query head takes the fewest listed tokens that hold a share of its softmax.

    total  = sum over all tokens of exp(score)
    taken  = the fewest listed tokens of the range, best first, with
             (mass of sinks and window) + (mass of taken) >= share * total,  at most k

What the list leaves out is known where all scores were computed (`totals`). Else it is estimated
from a stratified sample of the range: a listed token counts as itself, another one of the sample as
`step` of its kind. Every token is drawn with probability 1 / step, so the estimate is unbiased. A
bound would not do: the least listed score times the tokens left is far above what they have.
"""

from functools import cache

import numpy as np

from kvarn.jit import simd as v
from kvarn.jit.cached import jit
from kvarn.jit.launch.atomics import take
from kvarn.jit.launch.define import Share, kernel
from kvarn.jit.launch.views import address, of_thread
from kvarn.jit.simd import mask, vtanh
from kvarn.ops.attention.decode.scores import gathered_scores
from kvarn.ops.attention.layout import SEGMENT, TILE
from kvarn.ops.attention.shape import shape_of
from kvarn.ops.attention.work import HEAD_SCORES
from kvarn.ops.select.best import entry_of, prune
from kvarn.ops.select.choice import Range
from kvarn.ops.select.lists import clear, mark, write_list
from kvarn.ops.select.queries import pack_queries
from kvarn.ops.select.scores import cost_of
from kvarn.ops.select.work import DIGIT

from .arguments import Query, Scratch, Wanted

_LEAST = np.float32(-1e30)  # the score of what does not count: its exponential is 0


@jit
def _scores_of(products, scoring):
    """The scores of 16 products; scoring: `Scoring`."""
    x = products * v.set_f32(scoring.scale)
    if scoring.softcap != 0.0:
        x = vtanh(x * v.set_f32(1.0 / scoring.softcap)) * v.set_f32(scoring.softcap)
    return x


@jit
def _exponential(x):
    """exp of one number up to 0."""
    return v.hmax(v.vexp(v.set_f32(x)))


@jit
def _weigh(line, n, top, out):
    """out[i] = exp(score i - top) of n scores at an address, rounded up to whole vectors."""
    for i in range(0, n, TILE):
        v.store(out, 4 * i, v.vexp(v.load_f32(line, 4 * i) - v.set_f32(top)))


@jit
def _greatest(line, n, least):
    """The greatest of n scores at an address, and of `least`."""
    top = v.set_f32(least)
    for i in range(0, n, TILE):
        top = v.vmax(top, mask(v.load_f32(line, 4 * i), 0, n - i, _LEAST))
    return np.float32(v.hmax(top))


@jit
def fewest(entries, weights, n, need, masses, histogram):
    """How many of n entries, least costs first, it takes for `need` of their weight; n if all are
    too few.

    A radix select by weight instead of number: each of three passes finds the digit of the cost at
    which the sum of the weights reaches what is needed.
    """
    prefix, below, count = np.uint64(0), 0.0, 0
    size, bits = 1 << DIGIT, 33
    while bits > 0:
        bits -= DIGIT
        masses[:size] = 0.0
        histogram[:size] = 0
        for i in range(n):
            cost = entries[i] >> np.uint64(32)
            if cost >> np.uint64(bits + DIGIT) == prefix:
                own = np.int64(cost >> np.uint64(bits)) & (size - 1)
                masses[own] += weights[i]
                histogram[own] += 1
        digit = 0
        while digit < size and below + masses[digit] < need:
            below += masses[digit]
            count += histogram[digit]
            digit += 1
        if digit == size:
            return count
        prefix = (prefix << np.uint64(DIGIT)) | np.uint64(digit)
    n_equal = histogram[digit]
    each = masses[digit] / n_equal
    return count + min(np.int64(np.ceil((need - below) / each)), n_equal)


@jit
def _put_scores(shape, query, j, rows, tokens, n, scoring, mine, out):
    """out[h][i] = score of tokens[i] for the n queries at rows."""
    s = address(mine.works)
    for begin in range(0, len(tokens), SEGMENT):
        some = tokens[begin : min(begin + SEGMENT, len(tokens))]
        gathered_scores(
            shape, address(rows), some, query.segments, j, address(mine.gathered_works),
            s + 4 * HEAD_SCORES, s,
        )  # fmt: skip
        for h in range(n):
            for i in range(0, len(some), TILE):
                x = _scores_of(v.load_f32(s + h * HEAD_SCORES, 4 * i), scoring)
                v.store(address(out[h]), 4 * (begin + i), x)


@jit
def _leave_out(sample, listed, marks, left):
    """left = the tokens of the sample that are not listed; returns how many."""
    n = 0
    for token in listed:
        marks[token >> 6] |= np.uint64(1) << np.uint64(token & 63)
    for token in sample:
        left[n] = token
        n += not (marks[token >> 6] >> np.uint64(token & 63)) & np.uint64(1)
    return n


@jit
def _take(query, head, tokens, scores, sampled, among, wanted, mine):
    """Mark what query head `head` takes of the listed tokens with these scores."""
    line, others, n = address(scores), address(sampled), len(tokens)
    top = _greatest(others, len(sampled), _greatest(line, n, _LEAST))
    known = len(query.totals) > 0
    if known:
        top = max(top, query.totals[head, 0])
    weights, entries = mine.weights, mine.entries
    _weigh(line, n, top, address(weights))
    always, inside, m = 0.0, 0.0, 0
    for i in range(n):
        weight, token = weights[i], np.int64(tokens[i])
        if among.first <= token < among.last:
            entries[m] = entry_of(cost_of(np.uint64(v.load_u32(line, 4 * i))), token)
            weights[m] = weight
            inside += weight
            m += 1
        else:
            always += weight
    if known:
        total = always + query.totals[head, 1] * _exponential(query.totals[head, 0] - top)
    else:
        total = always + inside
        _weigh(others, len(sampled), top, others)
        for x in sampled:
            total += wanted.step * x
    need = wanted.share * total - always
    if need > 0.0:
        candidates = mine.candidates
        k = min(fewest(entries, weights, m, need, mine.masses, candidates.histogram), wanted.k)
        if k < m:
            spare = mine.entries_spare
            prune(entries, m, k, 32, wanted.seed, spare[0], spare[1], candidates.histogram)
        mark(entries, min(k, m), candidates.marks)


@cache
def make_cover(k_type, v_type, blocks, heads):
    """The kernel for KV types, rows of 32 * blocks and `heads` query heads at a time."""

    @kernel
    def cover_kernel(
        share: Share, query: Query, scratch: Scratch, n_kv_heads: int, among: Range, wanted: Wanted
    ):
        """Shortens the lists. Reads the K rows of the listed tokens and of the sample."""
        shape, mine = shape_of(k_type, v_type, blocks, heads), of_thread(scratch, share.part)
        group, marks = query.q.shape[1] // n_kv_heads, mine.candidates.marks
        j = take(share.ticket)
        while j < n_kv_heads:
            pack_queries(shape, query.q, j, group, mine.rows)
            tokens = query.lists[j, : query.counts[j]]
            clear(marks, among.stop)
            n_left = _leave_out(query.sample, tokens, marks, mine.left)
            clear(marks, among.stop)
            left = mine.left[:n_left]
            for g in range(0, group, heads):
                n, rows = min(heads, group - g), mine.rows[g : g + heads]
                _put_scores(shape, query, j, rows, tokens, n, wanted, mine, mine.listed)
                _put_scores(shape, query, j, rows, left, n, wanted, mine, mine.sampled)
                for h in range(n):
                    scores, others = mine.listed[h], mine.sampled[h, :n_left]
                    _take(query, j * group + g + h, tokens, scores, others, among, wanted, mine)
            query.counts[j] = write_list(marks, among.first, among.last, among.stop, query.lists[j])
            j = take(share.ticket)

    return cover_kernel
