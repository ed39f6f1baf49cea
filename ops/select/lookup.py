"""Sums over the bits of signatures, without unpacking them: half bytes index tables of 16 numbers.

The signatures of 32 tokens (64 with AVX-512) are transposed in registers, so that a vector holds
byte 0 of all tokens, the next one byte 1, … Each half byte of it then indexes a table that was made
for the query; one instruction looks all of them up.
"""

from llvmlite import ir

from ...jit import simd as v
from ...jit.simd import read

BYTES = v.vty(v.I8, 32)
AT_ONCE = 64 if v.VARIANT == "avx512" else 32  # tokens
WIDEST = v.vty(v.I8, AT_ONCE)


def look_up(b, table, index):
    """table[index] for 32 half bytes, or AT_ONCE; table: 16 bytes."""
    if index.type.count == 64:
        table = v.shuffle(b, table, [*range(16)] * 4)
        return v.call(b, "llvm.x86.avx512.pshuf.b.512", WIDEST, table, index)
    if v.VARIANT in ("avx2", "avx512"):
        table = v.shuffle(b, table, [*range(16)] * 2)
        return v.call(b, "llvm.x86.avx2.pshuf.b", BYTES, table, index)
    if v.VARIANT == "neon":
        name, half = "llvm.aarch64.neon.tbl1.v16i8", table.type
        parts = [v.shuffle(b, index, range(i, i + 16)) for i in (0, 16)]
        return _halves(b, *(v.call(b, name, half, table, x) for x in parts))
    out = ir.Constant(BYTES, ir.Undefined)
    for i in range(32):
        lane = ir.Constant(v.I32, i)
        x = b.extract_element(table, b.extract_element(index, lane))
        out = b.insert_element(out, x, lane)
    return out


def add_saturated(b, x, y):
    """x + y for vectors of int8, at most 127 and at least -128."""
    return v.call(b, f"llvm.sadd.sat.v{x.type.count}i8", x.type, x, y)


def _halves(b, low, high):
    return v.shuffle(b, low, range(2 * low.type.count), high)


def _lanes(b, words, offset, stride):
    """16 bytes at `offset` beside 16 at `offset + stride`, as 8 words of 32 bits."""
    quarter = v.vty(v.I32, 4)
    return _halves(b, read(b, words, quarter, offset), read(b, words, quarter, offset + stride))


def _transpose4(b, rows):
    """Four vectors of 8 words: in each half, word p of row r becomes word r of row p."""
    low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
    wide, out = v.vty(v.I64, 4), []
    for order in (low, high):
        x, y = (b.bitcast(v.shuffle(b, rows[i], order, rows[i + 1]), wide) for i in (0, 2))
        out += [v.shuffle(b, x, [0, 4, 2, 6], y), v.shuffle(b, x, [1, 5, 3, 7], y)]
    return [b.bitcast(x, v.vty(v.I32, 8)) for x in out]


def _words(b, words, bits):
    """Four vectors for each 32 bits: j has tokens 4 j … in one half, 16 + 4 j … in the other."""
    if bits == 32:
        yield [_lanes(b, words, 16 * j, 64) for j in range(4)]
        return
    if bits > 64:
        size = bits // 8
        for c in range(0, size, 16):
            at = min(c, size - 16)  # the last 16 bytes may begin with words that were read
            fours = [
                _transpose4(
                    b, [_lanes(b, words, (4 * j + i) * size + at, 16 * size) for i in range(4)]
                )
                for j in range(4)
            ]
            yield from [*zip(*fours)][(c - at) // 4 :]
        return
    pairs = [[_lanes(b, words, 32 * j + 16 * i, 128) for i in (0, 1)] for j in range(4)]
    for order in ([0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]):
        yield [v.shuffle(b, x, order, y) for x, y in pairs]


def _planes(b, vectors):
    """Four vectors of tokens as four of bytes: byte p of 32 tokens, tokens in order."""
    group = [16 * (i // 16) + 4 * (i % 4) + i % 16 // 4 for i in range(32)]
    grouped = []
    for tokens in vectors:
        x = v.shuffle(b, b.bitcast(tokens, BYTES), group)
        grouped.append(b.bitcast(x, v.vty(v.I32, 8)))
    return [b.bitcast(x, BYTES) for x in _transpose4(b, grouped)]


def _words_of_64(b, words, bits):
    """Four vectors for each 32 bits of 64 tokens, in order: 16 tokens each."""
    wide = v.vty(v.I32, 16)
    x = [read(b, words, wide, 64 * j) for j in range(bits // 8)]
    if bits == 32:
        yield x
        return
    for word in (0, 1):
        yield [v.shuffle(b, y, range(word, 32, 2), z) for y, z in zip(x[::2], x[1::2])]


def _planes_of_64(b, vectors):
    """Four vectors of 16 tokens as four of bytes: byte p of 64 tokens."""
    group = [16 * (i // 16) + 4 * (i % 4) + i % 16 // 4 for i in range(64)]
    wide = v.vty(v.I32, 16)
    x = [b.bitcast(v.shuffle(b, b.bitcast(y, WIDEST), group), wide) for y in vectors]
    for p in (0, 2):  # bytes p and p + 1 of 32 tokens, then one of these bytes of all 64
        lanes = [4 * i + p + k for k in (0, 1) for i in range(8)]
        first, second = (v.shuffle(b, x[i], lanes, x[i + 1]) for i in (0, 2))
        for half in (0, 8):
            both = [*range(half, half + 8), *range(half + 16, half + 24)]
            yield b.bitcast(v.shuffle(b, first, both, second), WIDEST)


def bytes_of(b, words, bits):
    """Byte p of the signatures of AT_ONCE tokens, for each p."""
    if AT_ONCE == 32:
        for vectors in _words(b, words, bits):
            yield from _planes(b, vectors)
    elif bits <= 64:
        for vectors in _words_of_64(b, words, bits):
            yield from _planes_of_64(b, vectors)
    else:
        parts = words, b.gep(words, [ir.Constant(v.I64, 4 * bits)])
        for vectors in zip(*(_words(b, part, bits) for part in parts)):
            yield from (_halves(b, *both) for both in zip(*(_planes(b, x) for x in vectors)))


def half_bytes_of(b, words, bits):
    """Half byte i of AT_ONCE tokens, for each i: numbers from 0 to 15."""
    for plane in bytes_of(b, words, bits):
        yield b.and_(plane, v.const(WIDEST, 15))
        yield b.lshr(plane, v.const(WIDEST, 4))
