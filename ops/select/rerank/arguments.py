"""What exact scores of candidates work on. Imports no Numba."""

from typing import NamedTuple

from ....jit.launch import arguments as arrays


class Wanted(NamedTuple):
    """The k largest products of the best `n_candidates` estimates; seed: of the hash for ties."""

    k: int
    n_candidates: int
    seed: int


class Products(NamedTuple):
    """Scratch of exact products with listed keys; of each thread."""

    rows: arrays.F32_3D
    """The query heads of a KV head, laid out as its keys are."""
    gathered_works: arrays.U8_2D
    works: arrays.U8_2D


class RowRerank(NamedTuple):
    """Scratch of the choice among the candidates of a row; of each thread."""

    products: Products
    scores: arrays.F32_4D
    """[1,024 tokens][query of a pass][token]"""
    guesses: arrays.F32_2D
    """[query head of a KV head]: the exact product that was needed in the row before."""
    listed: arrays.U32_2D
    """The candidates of a pass."""
    taken: arrays.U64_2D
    """Those of them whose exact products reach a limit, as entries of `best`."""
    spare: arrays.U64_3D
    histogram: arrays.I64_2D
    chosen: arrays.U64_2D
    """Marks of all passes of a KV head's queries."""
