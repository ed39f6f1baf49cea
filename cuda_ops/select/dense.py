"""A matrix times the vectors of a few rows, each of which a program keeps in memory."""

import triton
import triton.language as tl


@triton.jit
def dense(x, ROWS: tl.constexpr, weights, N_IN: tl.constexpr, N_OUT: tl.constexpr):
    """W x + b (ROWS, N_OUT rounded up) of the rows at addresses x (ROWS,).

    weights: [in][out], then b. Each output is summed in the order of the inputs by fused
    multiplications, as in `ops.select.dense`: the sums have the same bits.
    """
    o = tl.arange(0, triton.next_power_of_2(N_OUT))
    y = tl.load(weights + N_IN * N_OUT + o, o < N_OUT, 0.0)[None, :]
    y = tl.broadcast_to(y, (ROWS, triton.next_power_of_2(N_OUT)))
    for e in range(N_IN):
        w = tl.load(weights + e * N_OUT + o, o < N_OUT, 0.0)[None, :]
        y = tl.fma(
            tl.broadcast_to(w, y.shape), tl.broadcast_to(tl.load(x + e)[:, None], y.shape), y
        )
    return y


@triton.jit
def put(x, y, N: tl.constexpr):
    """Rows y (rows, N rounded up) to addresses x (rows,), seen by all threads of the program."""
    o = tl.arange(0, y.shape[1])
    tl.debug_barrier()
    tl.store(x[:, None] + o[None, :], y, tl.broadcast_to((o < N)[None, :], y.shape))
    tl.debug_barrier()
