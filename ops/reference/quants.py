"""Dequantisation in NumPy, bit for bit what gguf-py computes, and one encoder (Q8_0).

Every format stores a weight as `w = d * q` or `w = d * q - m`. `q` is a small integer, or an entry
of a table of 16 small integers. `d` and `m` are shared by 32 weights (the legacy formats), or they
are products of a float per 256 weights and a small integer per 16 or 32 (the K formats). The order
of the float operations is part of the format: another order would differ in the last bit.

Source: ggml-quants.c / gguf-py `gguf.quants` (layout and order of operations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OpsError
from ..types import QuantType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the values of e2m1 (OCP Microscaling Formats, section 5.3.3); the scale is halved instead.
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

# ------------------------------------------------------------------ fields --


def _half(b: Bytes, at: int) -> Floats:
    """The f16 at byte `at` of each block -> f32[n, 1]."""
    return b[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _fields(b: Array, width: int, group: int) -> Array:
    """Split bytes into fields of `width` bits, `group` bytes at a time.

    uint8[n, g * group] -> uint8[n, g * (8 / width) * group]: of each group first the lowest field
    of every byte, then the next higher one, and so on.
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8)[None, None, :, None]
    fields = (b.reshape(len(b), -1, 1, group) >> shifts) & np.uint8((1 << width) - 1)
    return fields.reshape(len(b), -1)


def _bits(b: Bytes) -> Array:
    """The bits of each block's bytes in order, lowest first: uint8[n, k] -> uint8[n, 8 k]."""
    return np.unpackbits(b, axis=1, bitorder="little")


def _grouped(scale: Array, q: Array) -> tuple[Floats, Floats]:
    """Shapes for multiplying scales [n, g] with the groups of values of q [n, 256]."""
    n, groups = scale.shape
    return scale.reshape(n, groups, 1), q.reshape(n, groups, -1).astype(np.float32)


def _signed(q: Array, offset: int) -> Array:
    return q.astype(np.int8) - np.int8(offset)


# ---------------------------------------------------- blocks of 32 weights --


def _q8_0(b: Bytes) -> Floats:
    return b[:, 2:].view(np.int8).astype(np.float32) * _half(b, 0)


def _q4_0(b: Bytes) -> Floats:
    return _half(b, 0) * _signed(_fields(b[:, 2:], 4, 16), 8).astype(np.float32)


def _q4_1(b: Bytes) -> Floats:
    return _half(b, 0) * _fields(b[:, 4:], 4, 16).astype(np.float32) + _half(b, 2)


def _five(b: Bytes, at: int) -> Array:
    """Four bytes of fifth bits at byte `at`, then the nibbles."""
    return _fields(b[:, at + 4 :], 4, 16) | (_bits(b[:, at : at + 4]) << np.uint8(4))


def _q5_0(b: Bytes) -> Floats:
    return _half(b, 0) * _signed(_five(b, 2), 16).astype(np.float32)


def _q5_1(b: Bytes) -> Floats:
    return _half(b, 0) * _five(b, 4).astype(np.float32) + _half(b, 2)


def _iq4_nl(b: Bytes) -> Floats:
    return _half(b, 0) * np.array(IQ4_VALUES, np.float32)[_fields(b[:, 2:], 4, 16)]


def _mxfp4(b: Bytes) -> Floats:
    e = b[:, :1].astype(np.uint32)
    # Half of 2**(e - 127); the two smallest are subnormal.
    half_scale = np.where(e < 2, np.uint32(0x00200000) << e, (e - np.uint32(1)) << np.uint32(23))
    values = np.array(MXFP4_VALUES, np.float32)[_fields(b[:, 1:], 4, 16)]
    return half_scale.astype(np.uint32).view(np.float32) * values


# --------------------------------------------------- blocks of 256 weights --


def _q2_k(b: Bytes) -> Floats:
    # 16 bytes of scale (low) and minimum (high) nibbles, 64 bytes of 2-bit fields, d, dmin
    scale, low = b[:, :16] & np.uint8(15), b[:, :16] >> np.uint8(4)
    d, q = _grouped(_half(b, 80) * scale.astype(np.float32), _fields(b[:, 16:80], 2, 32))
    m, _ = _grouped(_half(b, 82) * low.astype(np.float32), q)
    return (d * q - m).reshape(len(b), -1)


def _q3_k(b: Bytes) -> Floats:
    # 32 bytes of third bits, 64 bytes of 2-bit fields, 12 bytes of scales, d
    low = _fields(b[:, 96:104], 4, 8)
    high = _fields(b[:, 104:108], 2, 4)
    scale = _signed(low | (high << np.uint8(4)), 32).astype(np.float32)
    third = _fields(b[:, :32], 1, 32)
    value = _fields(b[:, 32:96], 2, 32) | (third << np.uint8(2))
    d, q = _grouped(_half(b, 108) * scale, _signed(value, 4))
    return (d * q).reshape(len(b), -1)


def _k_scales(b: Bytes) -> tuple[Floats, Floats]:
    """12 bytes -> eight 6-bit scales and eight 6-bit minima.

    Bytes 0-3: scales 0-3 in the low six bits; 4-7: minima 0-3; 8-11: low nibbles of scales 4-7 and
    of minima 4-7, whose two high bits are the high bits of bytes 0-3 and 4-7.
    """
    first, second, third = b[:, :4], b[:, 4:8], b[:, 8:]

    def six(low: Bytes, nibble: Bytes) -> Floats:
        rest = (nibble & np.uint8(15)) | ((low >> np.uint8(2)) & np.uint8(0x30))
        return np.concatenate([low & np.uint8(63), rest], axis=1).astype(np.float32)

    return six(first, third), six(second, third >> np.uint8(4))


def _k_with_minimum(b: Bytes, q: Array) -> Floats:
    scale, low = _k_scales(b[:, 4:16])
    d, q = _grouped(_half(b, 0) * scale, q)
    m, _ = _grouped(_half(b, 2) * low, q)
    return (d * q - m).reshape(len(b), -1)


def _q4_k(b: Bytes) -> Floats:
    return _k_with_minimum(b, _fields(b[:, 16:], 4, 32))


def _q5_k(b: Bytes) -> Floats:
    fifth = _fields(b[:, 16:48], 1, 32)
    return _k_with_minimum(b, _fields(b[:, 48:], 4, 32) | (fifth << np.uint8(4)))


def _q6_k(b: Bytes) -> Floats:
    # 128 bytes of nibbles, 64 bytes of 2-bit fields, 16 int8 scales, d
    q = _fields(b[:, :128], 4, 64) | (_fields(b[:, 128:192], 2, 32) << np.uint8(4))
    scale = b[:, 192:208].view(np.int8).astype(np.float32)
    d, values = _grouped(_half(b, 208) * scale, _signed(q, 32))
    return (d * values).reshape(len(b), -1)


def _iq4_xs(b: Bytes) -> Floats:
    # d, 8 x 2 high bits of the scales, 4 bytes of their low nibbles, 128 bytes of nibbles
    low, high = _fields(b[:, 4:8], 4, 1), _fields(b[:, 2:4], 2, 1)
    scale = _signed(low | (high << np.uint8(4)), 32).astype(np.float32)
    values = np.array(IQ4_VALUES, np.float32)[_fields(b[:, 8:], 4, 16)]
    d, q = _grouped(_half(b, 0) * scale, values)
    return (d * q).reshape(len(b), -1)


# ------------------------------------------------------------ plain floats --


def _f32(b: Bytes) -> Floats:
    return b.view(np.float32)


def _f16(b: Bytes) -> Floats:
    return b.view(np.float16).astype(np.float32)


def _bf16(b: Bytes) -> Floats:
    return (b.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


# uint8[n, n_bytes] -> float32[n, block]: one entry per type.
DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}


def dequantise(quant_type: QuantType, data: Bytes) -> Floats:
    """Rows of a quantised tensor as floats, bit-exact against gguf-py.

    uint8[..., row_bytes] -> float32[..., n_cols]. Types outside `DECODERS` go through gguf-py.
    Raises OpsError when a row is not a whole number of blocks or gguf-py cannot decode the type.
    """
    n_blocks, rest = divmod(data.shape[-1], quant_type.n_bytes)
    if rest:
        raise OpsError(
            f"dequantising {quant_type.name}: found rows of {data.shape[-1]} bytes, expected a"
            f" multiple of {quant_type.n_bytes}"
        )
    decode = DECODERS.get(quant_type.name)
    if decode is None:
        return _dequantise_elsewhere(quant_type, data)
    blocks = np.ascontiguousarray(data).reshape(-1, quant_type.n_bytes)
    # NaN and infinite scales are legal bytes: their products need no warning.
    with np.errstate(all="ignore"):
        values = decode(blocks)
    return values.reshape(*data.shape[:-1], n_blocks * quant_type.block)


def _dequantise_elsewhere(quant_type: QuantType, data: Bytes) -> Floats:
    import gguf.quants

    try:
        qtype = gguf.GGMLQuantizationType(quant_type.ggml_id)
        return np.asarray(gguf.quants.dequantize(data, qtype), np.float32)
    except (NotImplementedError, ValueError) as error:
        raise OpsError(
            f"dequantising {quant_type.name}: found a type that neither kvarn nor gguf-py can"
            f" decode, expected one of {', '.join(DECODERS)} or gguf-py's; convert the model"
        ) from error


def encode_q8_0(x: Floats) -> Bytes:
    """float32[N, K] -> Q8_0 rows uint8[N, K / 32 * 34]: d = max|x| / 127, q = round(x / d).

    Halves are rounded away from zero, as ggml does. Raises OpsError when K % 32 is not 0.
    """
    n_rows, n_cols = x.shape
    if n_cols % 32:
        raise OpsError(f"encoding Q8_0: found rows of {n_cols}, expected a multiple of 32")
    blocks = np.asarray(x, np.float32).reshape(-1, 32)
    d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(d == 0, np.float32(0), np.float32(1) / d)
    scaled = blocks * inverse
    whole = np.trunc(scaled)
    q = whole + np.trunc(np.float32(2) * (scaled - whole))
    out = np.empty((len(blocks), 34), np.uint8)
    out[:, :2] = d.astype(np.float16).view(np.uint8)
    out[:, 2:] = q.astype(np.int8).view(np.uint8)
    return out.reshape(n_rows, -1)


def chunks(n_rows: int, n_cols: int, max_weights: int = 1 << 22) -> Iterator[slice]:
    """Slices of rows with at most `max_weights` weights each (one row at least)."""
    step = max(1, max_weights // max(n_cols, 1))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def re_encode_q8_0(quant_type: QuantType, data: Bytes, n_cols: int) -> Bytes:
    """Rows of any decodable type as Q8_0 rows, a few megabytes of floats at a time."""
    n_rows = data.shape[0]
    out = np.empty((n_rows, n_cols // 32 * 34), np.uint8)
    for rows in chunks(n_rows, n_cols):
        out[rows] = encode_q8_0(dequantise(quant_type, data[rows]))
    return out
