"""The rows of a matrix by any number of vectors, each of which gets the bits that it has alone.

    y[t, r] = sum_k W[r, k] x[t, k]

A thread takes some rows at once, as many as stay in its L2, and multiplies them by four vectors at
a time (plain floats: by one), with the arithmetic of `rows` or `interleaved`. Only the first of
these times waits for memory. Bytes read per call: those of the matrix.
"""

from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ...types import ROWS_SIDE_BY_SIDE
from ..arguments import Matrix, Output, Quantised
from ..floats import make_float_row
from ..formats import FORMATS, KINDS
from .blocks import make_blocks_on, rows_of_part
from .interleaved import make_sixteen_rows
from .rows import make_row


def make_alone_floats(type_name: str) -> DefinedKernel:
    """The kernel of one type of floats."""
    product = make_float_row(type_name)

    @kernel
    def alone_floats_kernel(share: Share, w: Matrix, x: int, n: int, out: Output):
        """x: address of float32[T, K]; n: K."""
        n_rows = rows_of_part(w, share.parts)
        first = take(share.ticket) * n_rows
        while first < w.n_rows:
            for r in range(first, min(first + n_rows, w.n_rows)):
                for t in range(out.n_tokens):
                    to = Output(out.data + t * out.row_bytes + 4 * r, 0, 1)
                    product(w.data + r * w.row_bytes, x + 4 * n * t, n, to)
            first = take(share.ticket) * n_rows

    return alone_floats_kernel


def make_alone(type_name: str, interleaved: bool) -> DefinedKernel:
    """The kernel of one quantised format; reads activations of a multiple of four vectors."""
    make = make_sixteen_rows if interleaved else make_row
    four, two, one = (make(type_name, tokens) for tokens in (4, 2, 1))
    at_once = ROWS_SIDE_BY_SIDE if interleaved else 1
    further = make_blocks_on(FORMATS[KINDS[type_name]])

    @kernel
    def alone_kernel(share: Share, w: Matrix, x: Quantised, n: int, out: Output):
        """n: blocks of a row."""
        n_rows = rows_of_part(w, share.parts)
        first = take(share.ticket) * n_rows
        while first < w.n_rows:
            for t in range(0, out.n_tokens, 4):
                left, xt = out.n_tokens - t, further(x, n * t)
                for r in range(first, min(first + n_rows, w.n_rows), at_once):
                    row = w.data + r * w.row_bytes
                    to = Output(out.data + t * out.row_bytes + 4 * r, out.row_bytes, left)
                    if left > 2:
                        four(row, xt, n, to)
                    elif left == 2:
                        two(row, xt, n, to)
                    else:
                        one(row, xt, n, to)
            first = take(share.ticket) * n_rows

    return alone_kernel
