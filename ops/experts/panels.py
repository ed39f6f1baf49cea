"""Many tokens: each expert's matrix by all of its tokens, in the panels of `linear.prefill`.

What a pair of an expert and a token gives has the same bits however many tokens the expert has.
Bytes read per call: those of the matrices of all experts that any token chose.
"""

from ...jit.cached import jit
from ...jit.launch import DefinedKernel
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, bounds, kernel
from ...jit.simd import load_f32, load_tail, store, store_tail
from ..linear.arguments import TOKENS, Buffers, GroupLayout, Matrix, Output, Quantised
from ..linear.floats import FLOAT_TRAITS, make_float_panel
from ..linear.prefill.matmul import PANELS_AT_ONCE, make_panels, matmul_traits
from ..linear.prefill.tiles import PANELS_PER_TILE
from ..linear.quantise import make_put_token
from .arguments import Pairs, Stacked


@jit
def _row_of(pairs, pair, per_pair):
    return pair if per_pair else pairs.tokens[pair]


def make_group_pairs(layout: GroupLayout) -> DefinedKernel:
    """The kernel that copies rows of quantised activations into each expert's groups."""
    n_bytes, run, put_token = layout.n_bytes, layout.run, make_put_token(layout)

    @kernel
    def group_pairs_kernel(
        share: Share, x: Quantised, n_blocks: int, pairs: Pairs, per_pair: int, out: int
    ):
        """The groups of each expert as `GroupLayout` has them, one expert after the other, at
        address `out`. A group that is not full repeats its last pair. per_pair: see `rows`."""
        runs = (n_blocks + run - 1) // run
        first, stop = bounds(share, pairs.groups[pairs.n_chosen[0]])
        e = 0
        for g in range(first, stop):
            while pairs.groups[e + 1] <= g:
                e += 1
            groups, group = pairs.groups[e + 1] - pairs.groups[e], g - pairs.groups[e]
            begin = out + pairs.groups[e] * runs * run * n_bytes
            pair, last = pairs.starts[e] + group * TOKENS, pairs.starts[e + 1] - 1
            for i in range(n_blocks):
                to = begin + ((i // run * groups + group) * run + i % run) * n_bytes
                for t in range(TOKENS):
                    row = _row_of(pairs, min(pair + t, last), per_pair)
                    put_token(x, row * n_blocks + i, to, t)

    return group_pairs_kernel


@kernel
def gather_rows_kernel(share: Share, x: int, n_cols: int, pairs: Pairs, out: int):
    """out float32 (pairs, K): the row of each pair's token of x float32 (T, K); addresses."""
    first, stop = bounds(share, pairs.starts[pairs.n_chosen[0]])
    for pair in range(first, stop):
        row, to = x + 4 * n_cols * pairs.tokens[pair], out + 4 * n_cols * pair
        for k in range(0, n_cols - 15, 16):
            store(to, 4 * k, load_f32(row, 4 * k))
        whole = n_cols // 16 * 16
        rest = n_cols - whole
        if rest:
            store_tail(to, 4 * whole, rest, load_tail(row, 4 * whole, rest))


@jit
def _place_of(w, pairs, number, parts, rows_at_once):
    """Address of the first of the rows that are part `number`."""
    e, row = number // parts, number % parts * rows_at_once
    return w.data + pairs.chosen[e] * w.expert_bytes + row * w.row_bytes


def make_expert_panels(type_name: str) -> DefinedKernel:
    """The kernel of one quantised format; its traits are `MatmulTraits`."""
    traits = matmul_traits(type_name)
    layout, panels = traits.activations, make_panels(type_name, False)
    run, n_bytes = layout.run, layout.n_bytes

    @kernel(traits=traits)
    def expert_panels_kernel(
        share: Share, w: Stacked, x: int, n_blocks: int, pairs: Pairs, out: int, scratch: Buffers
    ):
        """out float32 (pairs, N). x: address of `make_group_pairs`' groups."""
        buffer = scratch.data + share.part * scratch.n_bytes
        n_chosen, n_panels = pairs.n_chosen[0], (w.n_rows + 15) // 16
        # Fewer panels at once read activations more often, but share little work evenly.
        many = n_chosen * n_panels >= 4 * PANELS_AT_ONCE * share.parts
        at_once = 16 * (PANELS_AT_ONCE if many else PANELS_PER_TILE)
        parts = (w.n_rows + at_once - 1) // at_once
        group_bytes = (n_blocks + run - 1) // run * run * n_bytes
        number, last = take(share.ticket), parts * n_chosen - 1
        while number <= last:
            following = take(share.ticket)
            e, first = number // parts, number % parts * at_once
            place = _place_of(w, pairs, number, parts, at_once)
            next_rows = _place_of(w, pairs, min(following, last), parts, at_once)
            n_tokens = pairs.starts[e + 1] - pairs.starts[e]
            to = out + 4 * (pairs.starts[e] * w.n_rows + first)
            rows = Matrix(place, w.row_bytes, min(at_once, w.n_rows - first))
            xe = x + pairs.groups[e] * group_bytes
            panels(rows, xe, n_blocks, buffer, next_rows, Output(to, 4 * w.n_rows, n_tokens))
            number = following

    return expert_panels_kernel


def make_float_expert_panels(type_name: str) -> DefinedKernel:
    """The kernel of one type of plain floats; its traits are `FloatMatmulTraits`."""
    one_panel = make_float_panel(type_name)

    @kernel(traits=FLOAT_TRAITS)
    def float_expert_panels_kernel(
        share: Share, w: Stacked, x: int, n_cols: int, pairs: Pairs, out: int, scratch: Buffers
    ):
        """out float32 (pairs, N). x: address of float32 (pairs, K)."""
        weights = scratch.data + share.part * scratch.n_bytes
        parts = (w.n_rows + 15) // 16
        number, n = take(share.ticket), parts * pairs.n_chosen[0]
        while number < n:
            e, first = number // parts, number % parts * 16
            start = pairs.starts[e]
            place = _place_of(w, pairs, number, parts, 16)
            rows = Matrix(place, w.row_bytes, min(16, w.n_rows - first))
            to = out + 4 * (start * w.n_rows + first)
            result = Output(to, 4 * w.n_rows, pairs.starts[e + 1] - start)
            one_panel(rows, x + 4 * n_cols * start, n_cols, result, weights)
            number = take(share.ticket)

    return float_expert_panels_kernel
