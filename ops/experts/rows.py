"""Few tokens: rows of the chosen experts' matrices by single tokens, from the file's bytes.

Each pair of an expert and a token has the arithmetic of one token (`linear.decode.rows`), so that a
draft has the same bits when it is verified at once as when it is decoded token by token. Bytes read
per call: those of the chosen experts' matrices. Threads take parts of the rows of all of them.
"""

from typing import Any

from ...jit.cached import jit
from ...jit.launch import DefinedKernel
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ..linear.arguments import Matrix, Output, Quantised
from ..linear.decode.blocks import make_blocks_on, rows_of_part
from ..linear.decode.rows import make_row
from ..linear.floats import make_float_row
from ..linear.formats import FORMATS, KINDS
from ..linear.formats.floats import FLOAT_TYPES
from .arguments import Pairs, Stacked


def _make_floats_on() -> Any:
    """The jitted function that gives the address of the floats n further."""

    @jit
    def _floats_on(x, n):
        return x + 4 * n

    return _floats_on


def make_expert_rows(type_name: str) -> DefinedKernel:
    """The kernel of one type."""
    vectors: type
    if type_name in FLOAT_TYPES:
        product, vectors, further = make_float_row(type_name), int, _make_floats_on()
    else:
        product, vectors = make_row(type_name, 1), Quantised
        further = make_blocks_on(FORMATS[KINDS[type_name]])

    @kernel
    def expert_rows_kernel(
        share: Share,
        w: Stacked,
        x: vectors,  # type: ignore[valid-type]
        n: int,
        pairs: Pairs,
        per_pair: int,
        out: int,
    ):
        """out float32 (pairs, N): each pair's matrix by its vector, row `pair` of x if `per_pair`,
        else row `token`. n: blocks (floats) of a row."""
        n_chosen = pairs.n_chosen[0]
        at_once = rows_of_part(Matrix(0, w.row_bytes, w.n_rows * n_chosen), share.parts)
        parts = (w.n_rows + at_once - 1) // at_once
        number = take(share.ticket)
        while number < parts * n_chosen:
            e, first = number // parts, number % parts * at_once
            rows = w.data + pairs.chosen[e] * w.expert_bytes
            for pair in range(pairs.starts[e], pairs.starts[e + 1]):
                xp = further(x, n * (pair if per_pair else pairs.tokens[pair]))
                to = out + 4 * w.n_rows * pair
                for r in range(first, min(first + at_once, w.n_rows)):
                    product(rows + r * w.row_bytes, xp, n, Output(to + 4 * r, 0, 1))
            number = take(share.ticket)

    return expert_rows_kernel
