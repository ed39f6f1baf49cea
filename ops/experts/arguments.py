"""What the kernels for experts work on. Imports no Numba."""

from typing import NamedTuple

from ...jit.launch.arguments import F32_2D, I64_1D, I64_2D


class Stacked(NamedTuple):
    """A matrix of each expert: address of the first, bytes from expert to expert and from row to
    row, number of rows."""

    data: int
    expert_bytes: int
    row_bytes: int
    n_rows: int


class Choice(NamedTuple):
    """`Routing` in numbers. scores: its place in SCORES."""

    scores: int
    n_groups: int
    n_groups_used: int
    normalised: int
    scale: float


class Pairs(NamedTuple):
    """Which expert computes which token, for up to T tokens that choose k of n experts.

    ids, weights  (T, k)   what each token chose
    places        (T, k)   the places of these pairs among all, sorted by expert, then token
    tokens        (T k)    of each sorted pair
    experts       (T k)
    chosen        (n + 1)  the experts that any token chose
    starts        (n + 1)  the first pair of each of these; of the last, too, and where it stops
    groups        (n + 1)  its first group of `linear.arguments.TOKENS` pairs, as `starts`
    n_chosen      (1,)     how many any token chose
    ends          (n,)     the place after the last pair of each expert that is sorted
    choice        (T, n)   s + choice_bias
    of_groups     (T, groups of experts)
    """

    ids: I64_2D
    weights: F32_2D
    places: I64_2D
    tokens: I64_1D
    experts: I64_1D
    chosen: I64_1D
    starts: I64_1D
    groups: I64_1D
    n_chosen: I64_1D
    ends: I64_1D
    choice: F32_2D
    of_groups: F32_2D
