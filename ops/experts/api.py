"""The checking wrapper of routed experts, and its memory. Imports no Numba."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...jit.arena import aligned
from ...jit.launch import Arguments, DefinedKernel, Kernel, lazy_kernel, lazy_kernels
from ...jit.threads import n_threads
from ..arrays import F32, I64
from ..errors import OpsError
from ..linear.activations import Activations
from ..linear.arguments import TOKENS, FloatMatmulTraits, GroupLayout, MatmulTraits
from ..linear.decode import MAX_TOKENS
from ..pointwise.codes import CLAMPED_SWIGLU, GEGLU, GELU, RELU_SQUARED, SWIGLU
from .arguments import Choice, Pairs
from .routing import SCORES, Routing
from .weights import Activation, ExpertWeights

_FLOAT = np.dtype(np.float32)
_OPS: dict[Activation, int] = {
    "silu": SWIGLU,
    "gelu": GEGLU,
    "clamped-silu": CLAMPED_SWIGLU,
    "relu-squared": RELU_SQUARED,
    "ungated-gelu": GELU,
}
_SERIAL_FLOATS = 16_384  # inputs of this size take less time than waking the threads
_SERIAL_TOKENS = 4


@lazy_kernel
def _route() -> DefinedKernel:
    from .route import route_kernel

    return route_kernel


@lazy_kernel
def _sort() -> DefinedKernel:
    from .route import sort_kernel

    return sort_kernel


@lazy_kernels
def _rows(type_name: str) -> DefinedKernel:
    from .rows import make_expert_rows

    return make_expert_rows(type_name)


@lazy_kernels
def _panels(type_name: str) -> DefinedKernel:
    from .panels import make_expert_panels

    return make_expert_panels(type_name)


@lazy_kernels
def _float_panels(type_name: str) -> DefinedKernel:
    from .panels import make_float_expert_panels

    return make_float_expert_panels(type_name)


@lazy_kernels
def _group(layout: GroupLayout) -> DefinedKernel:
    from .panels import make_group_pairs

    return make_group_pairs(layout)


@lazy_kernel
def _gather() -> DefinedKernel:
    from .panels import gather_rows_kernel

    return gather_rows_kernel


@lazy_kernel
def _activate() -> DefinedKernel:
    from .combine import activate_kernel

    return activate_kernel


@lazy_kernel
def _combine() -> DefinedKernel:
    from .combine import combine_kernel

    return combine_kernel


@cache
def _many_tokens(type_name: str) -> tuple[Kernel, MatmulTraits]:
    kernel = _panels(type_name)
    return kernel, MatmulTraits(*kernel.traits)


class ExpertsScratch:
    """Memory for `experts` of up to `max_rows` tokens, for all layers of these sizes: some
    4 * max_rows * n_used * (2 n_ff + n_embd) bytes."""

    def __init__(self, routing: Routing, n_embd: int, n_ff: int, max_rows: int) -> None:
        n, k = routing.n_experts, routing.n_used
        n_pairs = max_rows * k
        self.routing, self.max_rows, self.n_embd, self.n_ff = routing, max_rows, n_embd, n_ff
        self.choice = Choice(
            scores=SCORES.index(routing.scores),
            n_groups=routing.n_groups,
            n_groups_used=routing.n_groups_used,
            normalised=int(routing.normalised),
            scale=routing.scale,
        )
        numbers: dict[str, tuple[int, ...]] = {
            "ids": (max_rows, k),
            "places": (max_rows, k),
            **dict.fromkeys(("tokens", "experts"), (n_pairs,)),
            **dict.fromkeys(("chosen", "starts", "groups"), (n + 1,)),
            "n_chosen": (1,),
            "ends": (n,),
        }
        floats = {
            "weights": (max_rows, k),
            "choice": (max_rows, n),
            "of_groups": (max_rows, routing.n_groups),
        }
        arrays: dict[str, Any] = {
            name: np.zeros(shape, np.int64) for name, shape in numbers.items()
        }
        arrays |= {name: np.zeros(shape, np.float32) for name, shape in floats.items()}
        self.pairs = Pairs(**arrays)
        self._arguments = Arguments.fixed(self.pairs)
        self.address = self._arguments.address
        self.gate, self.up = (aligned((n_pairs, n_ff), np.float32) for _ in range(2))
        self.down = aligned((n_pairs, n_embd), np.float32)
        self.hidden = Activations(n_pairs, n_ff)
        self._most_groups = -(-n_pairs // TOKENS) + min(n, n_pairs)
        self._memory: dict[tuple[object, int], NDArray[np.uint8]] = {}
        self._filled: set[tuple[object, int]] = set()

    def groups(self, layout: GroupLayout, n_cols: int) -> tuple[int, bool]:
        """Address of memory for the groups of all pairs, and whether it has to be filled."""
        return self._place(layout, n_cols, layout.buffer_bytes(self._most_groups * TOKENS, n_cols))

    def rows(self, n_cols: int) -> tuple[int, bool]:
        """Address of memory for float32 (pairs, n_cols), and whether it has to be filled."""
        return self._place("rows", n_cols, 4 * n_cols * len(self.gate))

    def chosen(self, n_tokens: int) -> tuple[I64, I64]:
        """The token and the expert of each pair of the last call, sorted by expert; the rows of
        `hidden`, the inputs of down matrices, are in this order."""
        n_pairs = n_tokens * self.routing.n_used
        return self.pairs.tokens[:n_pairs], self.pairs.experts[:n_pairs]

    def begin(self) -> None:
        """Other vectors follow: all memory has to be filled anew."""
        self._filled.clear()

    def _place(self, kind: object, n_cols: int, n_bytes: int) -> tuple[int, bool]:
        key = kind, n_cols
        if key not in self._memory:
            self._memory[key] = aligned(n_bytes, np.uint8)
        is_new = key not in self._filled
        self._filled.add(key)
        return int(self._memory[key].ctypes.data), is_new


def experts(
    act: Activations,
    logits: F32,
    weights: ExpertWeights,
    scratch: ExpertsScratch,
    out: F32,
    *,
    prompt: bool = False,
) -> None:
    """out = sum over the chosen experts e of w_e y_e(x), for the T vectors that `act` holds.

    w and the choice: see `Routing`, of logits float32 (T, n_experts), which are overwritten; y: see
    `ExpertWeights`. out float32 (T, n_embd). As `linear` does, products take x quantised to int8
    where the weights are quantised, and add in another order for up to 4 tokens than for more. With
    `prompt` they add as for more, so that a token of a prompt has the same bits among any others.
    The result is the same for any number of threads. Reads the matrices of the chosen experts once,
    `weights.bytes_per_token` for a token. Allocates nothing once the buffers for its number of
    tokens exist. Raises OpsError for shapes that do not fit.
    """
    n_tokens = len(act.x)
    _check(act, logits, weights, scratch, out)
    call = _Call(scratch, n_tokens, act.alone or (n_tokens <= MAX_TOKENS and not prompt))
    bias, scales = (_address(x) for x in (weights.choice_bias, weights.scales))
    choice = logits.ctypes.data, n_tokens, *scratch.choice, bias, scales
    _route(*choice, scratch.address, parallel=n_tokens > _SERIAL_TOKENS)
    _sort(n_tokens, scratch.address, parallel=False)
    # What has no gates is activated in the place of gates, by an operation that reads no others.
    outs = (scratch.gate, scratch.up)[: len(weights.inner)]
    call.multiply(act, weights.inner, outs, per_pair=False)
    n_pairs, n_ff = n_tokens * scratch.routing.n_used, weights.n_ff
    _activate(
        _OPS[weights.activation],
        *(x.ctypes.data for x in (scratch.gate, outs[-1])),
        n_ff,
        *(_address(x) for x in (weights.gate_bias, weights.up_bias)),
        scratch.address,
        n_pairs,
        parallel=n_pairs * n_ff > _SERIAL_FLOATS,
    )
    hidden = scratch.hidden.set(scratch.gate[:n_pairs])
    call.multiply(hidden, (weights.down,), (scratch.down,), per_pair=True)
    row = scratch.down.ctypes.data, weights.n_embd, _address(weights.down_bias)
    parallel = n_pairs * weights.n_embd > _SERIAL_FLOATS
    _combine(*row, scratch.address, n_tokens, out.ctypes.data, parallel=parallel)


def _address(x: F32 | None) -> int:
    return 0 if x is None else int(x.ctypes.data)


class _Call(NamedTuple):
    """One call of `experts`: its memory, its number of tokens, and whether these are few."""

    scratch: ExpertsScratch
    n_tokens: int
    few: bool

    def multiply(
        self,
        act: Activations,
        matrices: Sequence[Any],
        outs: Sequence[F32],
        per_pair: bool,
    ) -> None:
        """out (pairs, N) of each matrix, for row `pair` of `act` if `per_pair`, else `token`."""
        self.scratch.begin()
        for matrix, out in zip(matrices, outs, strict=True):
            stored = matrix.weight.stored_type
            rest = matrix.n_cols // stored.block, self.scratch.address
            if self.few:
                x = act.quantised(stored.block).addresses if stored.block > 1 else _row(act)
                to = per_pair, out.ctypes.data
                _rows(stored.name)(*matrix.stacked, *x, *rest, *to, group=act.group)
            elif stored.block > 1:
                kernel, traits = _many_tokens(stored.name)
                groups = self._grouped(act, traits.activations, per_pair)
                buffers = act.scratch(n_threads(), traits.buffer_bytes(self.n_tokens))
                kernel(*matrix.stacked, groups, *rest, out.ctypes.data, *buffers)
            else:
                kernel = _float_panels(stored.name)
                n_bytes = FloatMatmulTraits(*kernel.traits).buffer_bytes(self.n_tokens)
                rows = _row(act) if per_pair else self._gathered(act)
                buffers = act.scratch(n_threads(), n_bytes)
                kernel(*matrix.stacked, *rows, *rest, out.ctypes.data, *buffers)

    def _grouped(self, act: Activations, layout: GroupLayout, per_pair: bool) -> int:
        """Address of the vectors in each expert's groups, for all matrices that follow."""
        x, n_blocks = act.quantised(layout.block).addresses, act.n_cols // layout.block
        to, is_new = self.scratch.groups(layout, act.n_cols)
        if is_new:
            _group(layout)(*x, n_blocks, self.scratch.address, per_pair, to)
        return to

    def _gathered(self, act: Activations) -> tuple[int, ...]:
        """Address of the vectors of all pairs, for all matrices that follow."""
        to, is_new = self.scratch.rows(act.n_cols)
        if is_new:
            _gather(act.x.ctypes.data, act.n_cols, self.scratch.address, to)
        return (to,)


def _row(act: Activations) -> tuple[int, ...]:
    return (int(act.x.ctypes.data),)


def _check(
    act: Activations, logits: F32, weights: ExpertWeights, scratch: ExpertsScratch, out: F32
) -> None:
    n_tokens, name = len(act.x), weights.inner[0].name
    expected = scratch.routing, scratch.n_embd, scratch.n_ff
    sizes = weights.routing, weights.n_embd, weights.n_ff
    if sizes != expected or n_tokens > scratch.max_rows:
        raise OpsError(
            f"experts {name}: found {n_tokens} tokens and {sizes}, expected at most"
            f" {scratch.max_rows} and {expected}, as the scratch memory"
        )
    for part, x, shape in (
        ("x", act.x, (n_tokens, weights.up.n_cols)),
        ("logits", logits, (n_tokens, weights.routing.n_experts)),
        ("out", out, (n_tokens, weights.n_embd)),
    ):
        if x.shape != shape or x.dtype != _FLOAT or not x.flags.c_contiguous:
            raise OpsError(
                f"experts {name}: found {part} {x.dtype} {x.shape}, expected"
                f" contiguous float32 {shape}"
            )
