"""Sums of signs by tables: what estimates of q . k are made of.

    estimate = factor * sum over half bytes i of table[i][half byte i], each addition saturated

Table entries are int8, made for a query head (`fill_tables`); sums go from -127 to 127. They are
those of `ops.select.sketch.sums`, whatever is saturated. `tables` has the entries d of the heads
that share a pass side by side, two in a word, so that one addition serves both:

    tables  int32 [KV head][pass][half byte][16][pair]   (d of head 2 pair) + 128, and 2^16 times
                                                         that of head 2 pair + 1
"""

import triton
import triton.language as tl

ZEROS = tl.constexpr(0x00800080)
"""Two sums of 0: each is kept in 16 bits with 128 added to it."""
OUTSIDE = tl.constexpr(0xFF00FF00 - (1 << 32))
"""Bits of two sums of which one is set where a sum is outside int8."""


@triton.jit
def cost_of(x):
    """As `ops.select.scores.cost_of`: uint32 in the order of float32 x, the largest first."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def _to_even(x):
    """x rounded to a whole number, halves to even ones; |x| < 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def fill_tables(y, table, pad, HEADS: tl.constexpr, BITS: tl.constexpr, RANGE: tl.constexpr):
    """As `ops.select.queries`: entries of the rotated query at y, HEADS apart, 128 added.

    pad: how many heads behind this one are none; their entries are those of 0.
    """
    square = 0.0
    for d in range(BITS):
        value = tl.load(y + d)
        square += value * value
    unit = RANGE * tl.sqrt_rn(square * BITS)
    scale = tl.where(unit > 0.0, tl.div_rn(1.0, tl.where(unit > 0.0, unit, 1.0)), 0.0)
    i, x = tl.arange(0, BITS // 4)[:, None], tl.arange(0, 16)[None, :]
    entry = tl.zeros((BITS // 4, 16), tl.float32)
    for bit in tl.static_range(4):
        value = tl.load(y + 4 * i + bit)
        entry += tl.where(((x >> bit) & 1) == 1, value, -value)
    to = table + (i * 16 + x) * HEADS
    tl.store(to, (_to_even(entry * scale).to(tl.int32) + 128).to(tl.int16))
    tl.store(to + pad, tl.full((BITS // 4, 16), 128, tl.int16), pad > 0)


@triton.jit
def _parts(bits, item, BITS: tl.constexpr):
    """The sketches at items (n,) as words of 64 bits, a tensor uint64 (n,) each."""
    n: tl.constexpr = BITS // 64
    place = bits.to(tl.pointer_type(tl.uint64))
    if n == 1:
        parts = (tl.load(place + item),)
    else:
        x = tl.load(place + (item[:, None] * n + tl.arange(0, n)[None, :]))
        if n == 2:
            parts = tl.split(x)
        else:
            even, odd = tl.split(tl.reshape(x, (item.shape[0], 2, 2)))
            a, c = tl.split(even)
            b, d = tl.split(odd)
            parts = (a, b, c, d)
    return parts


@triton.jit
def pair_sums(bits, item, table, PAIRS: tl.constexpr, BITS: tl.constexpr):
    """Sums of the heads of a pass for items (n,), a tensor (n,) of two sums for each pair.

    Plain additions, where no sum on the way leaves int8; those that did set a bit of `left`, and
    then all are added anew. Words are taken in a loop, although few: not so many loads are then
    begun together that registers spill.
    """
    parts = _parts(bits, item, BITS)
    sums, left = (), tl.zeros(item.shape, tl.int32)
    for _ in tl.static_range(PAIRS):
        sums = sums + (tl.full(item.shape, ZEROS, tl.int32),)
    for w in range(BITS // 64):
        part = parts[0]
        for i in tl.static_range(1, BITS // 64):
            part = tl.where(w == i, parts[i], part)
        words = ((part & 0xFFFFFFFF).to(tl.uint32), (part >> 32).to(tl.uint32))
        for i in tl.static_range(16):
            half = ((words[i // 8] >> (4 * (i % 8))) & 15).to(tl.int32)
            entries = table + (w * 16 + i) * (16 * PAIRS)
            new = ()
            for pair in tl.static_range(PAIRS):
                both = sums[pair] + (tl.load(entries + pair + half * PAIRS) - ZEROS)
                left |= both
                new = new + (both,)
            sums = new
    if tl.max(((left & OUTSIDE) != 0).to(tl.int32), 0) > 0:
        again = ()
        for pair in tl.static_range(PAIRS):
            again = again + (_saturated_sums(bits, item, table + pair, PAIRS, BITS),)
        sums = again
    return sums


@triton.jit
def _saturated_sums(bits, item, table, PAIRS: tl.constexpr, BITS: tl.constexpr):
    """Two sums in one (n,), each addition saturated.

    Loads are volatile: else the compiler kept all that was loaded before in registers, for here.
    """
    place = bits.to(tl.pointer_type(tl.int32)) + item * (BITS // 32)
    low, high = tl.full(item.shape, 128, tl.int32), tl.full(item.shape, 128, tl.int32)
    for w in range(BITS // 32):
        word = tl.load(place + w, volatile=True).to(tl.uint32, bitcast=True)
        for n in tl.static_range(8):
            half = ((word >> (4 * n)) & 15).to(tl.int32)
            entry = tl.load(table + ((w * 8 + n) * 16 + half) * PAIRS, volatile=True)
            low = tl.minimum(tl.maximum(low + (entry & 0xFFFF) - 128, 0), 255)
            high = tl.minimum(tl.maximum(high + (entry >> 16) - 128, 0), 255)
    return low | (high << 16)


@triton.jit
def head_sums(bits, item, listed, table, HEADS: tl.constexpr, BITS: tl.constexpr):
    """Sums (n,) int32 of one query head, of the sketches at items (n,); 0 where not listed.

    table: of its entries, int16 pointer, HEADS apart.
    """
    place = bits.to(tl.pointer_type(tl.int32))
    total = tl.full(item.shape, 128, tl.int32)
    for w in range(BITS // 32):
        word = tl.load(place + item * (BITS // 32) + w, listed, 0).to(tl.uint32, bitcast=True)
        for n in tl.static_range(8):
            half = ((word >> (4 * n)) & 15).to(tl.int32)
            entry = tl.load(table + ((w * 8 + n) * 16 + half) * HEADS, listed, 128).to(tl.int32)
            total = tl.minimum(tl.maximum(total + entry - 128, 0), 255)
    return tl.maximum(total, 1) - 128


@triton.jit
def estimate(sums, factors, item, listed):
    """The estimates (n,) of sums (n,) of the sketches at items; up to a factor of the query."""
    return sums.to(tl.float32) * tl.load(factors + item, listed, 0.0).to(tl.float32)
