"""Products, rows and pointwise kernels."""

from __future__ import annotations

from typing import Any

from .. import pointwise_kernels as pointwise
from ..linear import kernels
from ..linear.formats import FORMATS, Format
from ..linear.linear import shape_of, tokens_at_once, warps_of
from ..linear.planes import Planes
from .case import Case, types_of


def _planes(f: Format) -> Planes:
    """The types of a format's planes."""
    codes: Any = {"F32": "*fp32", "F16": "*fp16", "BF16": "*u16"}.get(f.name, "*u32")
    if f.is_float:
        return Planes(codes, codes, codes, codes, codes)
    heads: Any = {"d": "*fp16", "dm": "*u32", "e8m0": "*u8"}[f.heads]
    small: Any = {"": heads, "i8": "*i8", "nibbles": "*u8", "bytes": "*u16"}[f.small]
    table: Any = "*fp32"
    return Planes(codes, codes, small, heads, table)


def product(name: str, tokens: int = 1, matrices: int = 1) -> Case:
    """`product_kernel` for matrices of one type."""
    f, many = FORMATS[name], matrices
    shape = shape_of(f, tokens)
    types = types_of("x:*fp32 n_cols:i32 n_tokens:i32 magic:*u32")
    label = f"{name}, {tokens} token{'s' * (tokens > 1)}" + f", {many} matrices" * (many > 1)
    return Case(
        label,
        kernels.product_kernel,
        types
        | {
            "matrices": (_planes(f),) * many,
            "outs": ("*fp32",) * many,
            "n_rows": ("i32",) * many,
            "strides": ("i32",) * many,
        },
        {"FORMATS": (f,) * many, "SHAPES": (shape,) * many, "TOKENS": tokens},
        warps_of(f),
        ("n_cols", "n_rows", "strides"),
        shape[0] * shape[1] * f.step,
    )


def rows(name: str, by_id: bool) -> Case:
    """`rows_kernel`: embedding rows by their ids, or tiles of a matrix as f16."""
    f = FORMATS[name]
    types = types_of(
        f"ids:*i32 out:{'*fp32' if by_id else '*fp16'} first:i32 count:i32 n_rows:i32 n_cols:i32 "
        "factor:fp32 magic:*u32"
    )
    constants = {"BY_ID": by_id, "ROWS": 4, "STEPS": 2048 // f.step, "F": f}
    return Case(
        f"{'rows' if by_id else 'tile'} of {name}",
        kernels.rows_kernel,
        {"planes": _planes(f)} | types,
        constants,
        4,
        ("n_cols",),
    )


_NORM = "x:*fp32 branch:*fp32 weight:*fp32 bias:*fp32 out:*fp32 n_rows:i32 n:i32 eps:fp32"


def _norm(adds: bool, centred: bool, block: int) -> Case:
    return Case(
        f"{'add_' * adds}{'layer' if centred else 'rms'}_norm, {block}",
        pointwise.norm_kernel,
        types_of(_NORM),
        {"ADDS": adds, "CENTRED": centred, "BIAS": centred, "ROWS": 1, "BLOCK": block},
        4 if block <= 2048 else 16,
        ("n",),
    )


_ELEMENTWISE = types_of("x:*fp32 y:*fp32 out:*fp32 n:i32 c:fp32")
_ON_ROWS = types_of("x:*fp32 y:*fp32 n_rows:i32 n:i32")
_ROPE = types_of("q:*fp32 k:*fp32 table:*fp32 q_heads:i32 k_heads:i32 n:i32 half:i32")

LINEAR = (
    *(product(name) for name in FORMATS),
    *(product(name, n) for name, f in FORMATS.items() for n in {2, tokens_at_once(f, 8)}),
    product("Q4_K", 1, 3),
    *(rows(name, by_id) for name in ("Q4_0", "Q6_K", "F16") for by_id in (True, False)),
)
POINTWISE = (
    _norm(False, False, 4096),
    _norm(True, False, 4096),
    _norm(True, True, 8192),
    *(
        Case(name, pointwise.elementwise_kernel, _ELEMENTWISE, {"OP": op, "BLOCK": 1024}, 4, ("n",))
        for op, name in enumerate(("swiglu", "geglu", "add", "scale", "softcap"))
    ),
    *(
        Case(name, pointwise.rows_kernel, _ON_ROWS, {"OP": op, "ROWS": 4, "BLOCK": 256}, 4, ("n",))
        for op, name in ((pointwise.ADD.value, "add_row"), (pointwise.SCALE.value, "scale_rows"))
    ),
    *(
        Case(f"rope, {name}", pointwise.rope_kernel, _ROPE,
             {"NEOX": name == "neox", "HEADS": 8, "PAIRS": 32}, 2, ("n",))
        for name in ("normal", "neox")
    ),
)  # fmt: skip
