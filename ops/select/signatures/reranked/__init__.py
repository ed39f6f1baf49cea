"""Choices by signatures whose candidates are scored exactly: some times k nearest, then the best k.

candidates  each query head's `n_candidates` nearest signatures, as `nearest` chooses them
rerank      of the candidates of all heads that share a pass (`together`), each head takes its
            k largest exact q . k
list        the union of what all query heads of the KV head took
"""

from .api import (
    RerankedScratch,
    RowRerankedScratch,
    SignedKeys,
    SignedQueries,
    best_signed,
    best_signed_rows,
)

__all__ = [
    "RerankedScratch",
    "RowRerankedScratch",
    "SignedKeys",
    "SignedQueries",
    "best_signed",
    "best_signed_rows",
]
