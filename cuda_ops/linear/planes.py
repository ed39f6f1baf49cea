"""A file's rows taken apart into the planes of `formats`, with torch, where the rows are.

Source of the layouts: `ops/linear/formats` and `ops/reference/quants`, which draw them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from .formats import Format

CHUNK = 1 << 24
"""Weights taken apart at a time: bounds the memory for their codes, a byte each."""


class Planes(NamedTuple):
    """codes, more int32 (N, units, 4), or floats (N, K); small and heads as `formats` says.

    A plane that a type does not have is the first one: kernels get an address and do not read it.
    """

    codes: torch.Tensor
    more: torch.Tensor
    small: torch.Tensor
    heads: torch.Tensor
    table: torch.Tensor


def _fields(b: torch.Tensor, width: int, group: int) -> torch.Tensor:
    """Fields of `width` bits, `group` bytes at a time: of a group first the lowest of each byte."""
    groups = b.reshape(*b.shape[:-1], -1, 1, group)
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=b.device)[:, None]
    return ((groups >> shifts) & ((1 << width) - 1)).flatten(-3)


def _k_scales(b: torch.Tensor) -> torch.Tensor:
    """12 bytes -> eight pairs of six bits: scale, minimum."""
    first, second, third = b[..., :4], b[..., 4:8], b[..., 8:]
    scale = torch.cat([first & 63, (third & 15) | ((first >> 2) & 0x30)], -1)
    minimum = torch.cat([second & 63, (third >> 4) | ((second >> 2) & 0x30)], -1)
    return torch.stack([scale, minimum], -1).flatten(-2)


def _centred(b: torch.Tensor) -> torch.Tensor:
    """Six bits with offset 32 as int8, in its bytes."""
    return (b.view(torch.int8) - 32).view(torch.uint8)


def _codes(name: str, b: torch.Tensor) -> torch.Tensor:
    """Codes of blocks uint8 (N, blocks, n_bytes): uint8 (N, blocks, 32 or 256)."""
    if name == "Q8_0":
        return b[..., 2:] ^ 128
    if name in ("Q4_0", "IQ4_NL", "Q4_1", "MXFP4"):
        return _fields(b[..., -16:], 4, 16)
    if name in ("Q5_0", "Q5_1"):
        return _fields(b[..., -16:], 4, 16) | (_fields(b[..., -20:-16], 1, 1) << 4)
    if name == "Q2_K":
        return _fields(b[..., 16:80], 2, 32)
    if name == "Q3_K":
        return _fields(b[..., 32:96], 2, 32) | (_fields(b[..., :32], 1, 32) << 2)
    if name == "Q4_K":
        return _fields(b[..., 16:], 4, 32)
    if name == "Q5_K":
        return _fields(b[..., 48:], 4, 32) | (_fields(b[..., 16:48], 1, 32) << 4)
    if name == "Q6_K":
        return _fields(b[..., :128], 4, 64) | (_fields(b[..., 128:192], 2, 32) << 4)
    return _fields(b[..., 8:], 4, 16)  # IQ4_XS


def _small(name: str, b: torch.Tensor) -> torch.Tensor:
    """Integer scales and minima of blocks, as bytes."""
    if name == "Q2_K":
        return b[..., :16]
    if name in ("Q4_K", "Q5_K"):
        return _k_scales(b[..., 4:16])
    if name == "Q6_K":
        return b[..., 192:208]
    if name == "Q3_K":
        low, high = _fields(b[..., 96:104], 4, 8), _fields(b[..., 104:108], 2, 4)
        return _centred(low | (high << 4))
    if name == "IQ4_XS":
        low, high = _fields(b[..., 4:8], 4, 1), _fields(b[..., 2:4], 2, 1)
        return _centred(low | (high << 4))
    return b[..., :0]


def _heads(name: str, b: torch.Tensor) -> torch.Tensor:
    """d and m of blocks, as bytes."""
    first, size = {
        "Q2_K": (80, 4), "Q3_K": (108, 2), "Q6_K": (208, 2), "Q4_K": (0, 4), "Q5_K": (0, 4),
        "Q4_1": (0, 4), "Q5_1": (0, 4), "MXFP4": (0, 1),
    }.get(name, (0, 2))  # fmt: skip
    return b[..., first : first + size]


def _words(fields: torch.Tensor, width: int) -> torch.Tensor:
    """Fields uint8 (N, K) -> int32 (N, K width / 128, 4): field f of word j is element 4 f + j."""
    n_fields = 32 // width
    parts = fields.view(len(fields), -1, n_fields, 4)
    words = torch.zeros_like(parts[:, :, 0], dtype=torch.int32)
    for f in range(n_fields):
        words |= parts[:, :, f].int() << (width * f)
    return words


def _padded(x: torch.Tensor, n: int) -> torch.Tensor:
    """Rows of n elements: zeros after those of x."""
    if n == x.shape[1]:
        return x
    return torch.cat([x, x.new_zeros((len(x), n - x.shape[1]))], 1)


def _floats(f: Format, rows: torch.Tensor, n_cols: int) -> Planes:
    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.uint16}[f.name]
    n = -(-n_cols // f.step) * f.step
    values = _padded(rows.contiguous().view(kind), n)
    return Planes(values, values, values, values, values)


def take_apart(f: Format, rows: torch.Tensor, n_cols: int, n_bytes: int) -> Planes:
    """Rows of a file, uint8 (N, K / block * n_bytes), as planes on the same device."""
    if f.is_float:
        return _floats(f, rows, n_cols)
    n = -(-n_cols // f.step) * f.step
    parts: list[list[torch.Tensor]] = []
    for part in rows.split(max(1, CHUNK // n_cols)):
        blocks = part.reshape(len(part), -1, n_bytes)
        codes = _padded(_codes(f.name, blocks).flatten(1), n)
        planes, shift = [], 0
        for width in f.widths:
            planes.append(_words((codes >> shift) & ((1 << width) - 1), width))
            shift += width
        heads = _heads(f.name, blocks).flatten(1)
        per_block = heads.shape[1] // blocks.shape[1]
        planes.append(_small(f.name, blocks).flatten(1))
        planes.append(_padded(heads, -(-n // f.block) * per_block))
        parts.append(planes)
    whole = [torch.cat(plane).contiguous() for plane in zip(*parts)]
    words = [plane.view(torch.uint32) for plane in whole[: len(f.widths)]]
    small, heads = whole[-2], whole[-1]
    if f.small == "bytes":
        small = small.view(torch.uint16)
    elif f.small == "i8":
        small = small.view(torch.int8)
    if f.heads == "d":
        heads = heads.view(torch.float16)
    elif f.heads == "dm":
        heads = heads.view(torch.uint32)
    table = torch.tensor(f.table or (0.0,), dtype=torch.float32, device=rows.device)
    return Planes(words[0], words[-1], small if f.small else heads, heads, table)


def power_for_f16(f: Format, planes: Planes) -> float:
    """The power of two that brings the largest |weight|, or a bound of it, to 2^13 .. 2^14."""

    def most(x: torch.Tensor) -> float:
        wide = x.float().abs()
        return float(wide[wide.isfinite()].max()) if bool(wide.isfinite().any()) else 0.0

    if f.is_float:
        values = planes.codes
        if f.name == "BF16":
            values = values.view(torch.bfloat16)
        bound = max((most(part) for part in values.split(CHUNK)), default=0.0)
    else:
        heads = planes.heads
        if f.heads == "e8m0":
            bound = 2.0 ** (int(heads.max()) - 128)
        else:
            bound = most(heads if f.heads == "d" else heads.view(torch.float16))
        bound *= {"": 1, "i8": 128, "nibbles": 15, "bytes": 63}[f.small]
        bound *= max(map(abs, f.table)) if f.table else float(1 << sum(f.widths))
    return 2.0 ** (14 - math.frexp(bound)[1]) if bound else 1.0
