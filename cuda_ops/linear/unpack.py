"""From planes (`formats`) to floats in registers: device functions, the same for every kernel.

A field becomes a float without a conversion, of which a multiprocessor makes only 16 a clock:

    bits 0x4B000000 | q << p    are the float 2^23 + q 2^p, for p + width <= 23
    times 2^-p, minus (2^23 2^-p + centre)    is q - centre: both steps are exact

An instruction takes one constant. So `and` and `or` become one only if 0x4B000000 is in a register:
kernels load it from memory, as `magic`, where no compiler can see what it is.

Sizes of tensors: ROWS rows, STEPS steps, F.lanes neighbours (`Format`). `row` int64 (ROWS,) is
inside the matrix, `step` (STEPS,) may reach beyond a row, `here` (1, STEPS) says where it does not.
"""

import triton
import triton.language as tl


@triton.jit
def _field(words, WIDTH: tl.constexpr, at: tl.constexpr, to: tl.constexpr):
    """The field at bit `at`, moved to bit `to`; the other bits are zeros."""
    if at > to:
        words = words >> (at - to)
    if at < to:
        words = words << (to - at)
    return words & (((1 << WIDTH) - 1) << to)


@triton.jit
def _words(
    plane, row, step, here, n_steps, quad: tl.constexpr, WIDTH: tl.constexpr, F: tl.constexpr
):
    """The four words that hold quad `quad` of each step: uint32 (ROWS, STEPS, 4)."""
    units: tl.constexpr = F.step * WIDTH // 128
    unit = step * units + quad // (32 // WIDTH)
    at = (row * (4 * units * n_steps))[:, None, None] + 4 * unit[None, :, None]
    return tl.load(plane + at + tl.arange(0, 4)[None, None, :], here[:, :, None], 0)


@triton.jit
def _float(planes, row, step, here, n_steps, k: tl.constexpr, F: tl.constexpr):
    lane = tl.arange(0, F.lanes)[None, None, :]
    at = (row * (n_steps * F.step))[:, None, None] + (step * F.step + k * F.lanes)[None, :, None]
    value = tl.load(planes.codes + at + lane, here[:, :, None], 0)
    if F.name == "BF16":
        value = (value.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return value.to(tl.float32)


@triton.constexpr_function
def _place(F, at):
    """Where the field of bit `at` is used: where it stands, or lower, if a mantissa ends there."""
    if F.has_table:
        return 0
    highest = 23 - sum(F.widths)
    return at if at <= highest else at - 16 if at >= 16 else at - 8


@triton.jit
def _code(planes, row, step, here, n_steps, magic, k: tl.constexpr, F: tl.constexpr):
    width: tl.constexpr = F.widths[0]
    at: tl.constexpr = k % (32 // width) * width
    to: tl.constexpr = _place(F, at)
    bits = _field(_words(planes.codes, row, step, here, n_steps, k, width, F), width, at, to)
    if F.has_table:
        value = tl.load(planes.table + bits.to(tl.int32))
    else:
        high: tl.constexpr = F.high
        if high:
            words = _words(planes.more, row, step, here, n_steps, k, high, F)
            bits |= _field(words, high, k % (32 // high) * high, to + width)
        value = (bits | magic).to(tl.float32, bitcast=True)
        value = value * (1.0 / (1 << to)) - ((1 << 23) / (1 << to) + F.centre)
    return value


@triton.jit
def codes(planes, row, step, here, n_steps, magic, k: tl.constexpr, F: tl.constexpr):
    """Lanes number k of each step, less the centre: float32 (ROWS, STEPS, F.lanes)."""
    if F.is_float:
        value = _float(planes, row, step, here, n_steps, k, F)
    else:
        value = _code(planes, row, step, here, n_steps, magic, k, F)
    return value


@triton.jit
def _half(bits):
    return bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _number(x):
    """A small unsigned integer as float."""
    return x.to(tl.int32).to(tl.float32)


@triton.jit
def scale_and_minimum(planes, row, step, here, n_steps, i: tl.constexpr, F: tl.constexpr):
    """Scale and minimum of the grain number i of each step: float32 (ROWS, STEPS) both."""
    blocks = (n_steps * F.step + F.block - 1) // F.block
    block = (step * F.step + i * F.grain) // F.block
    head = tl.load(planes.heads + (row * blocks)[:, None] + block[None, :], here, 0)
    if F.heads == "dm":
        scale, minimum = _half(head & 0xFFFF), _half(head >> 16)
    elif F.heads == "e8m0":
        e = head.to(tl.int32)
        bits = tl.where(e < 2, 0x00200000 << e, (e - 1) << 23)
        scale = bits.to(tl.float32, bitcast=True)
        minimum = scale
    else:
        scale = head.to(tl.float32)
        minimum = scale
    if F.small != "":
        grains: tl.constexpr = F.step // F.grain
        at = (row * (grains * n_steps))[:, None] + (step * grains + i)[None, :]
        small = tl.load(planes.small + at, here, 0)
        if F.small == "i8":
            scale *= small.to(tl.float32)
        elif F.small == "nibbles":
            scale *= _number(small & 15)
            minimum *= _number(small >> 4)
        else:
            scale *= _number(small & 255)
            minimum *= _number(small >> 8)
    elif F.has_minimum:
        minimum = -minimum
    return scale, minimum
