"""Exact scores of candidates: of the tokens that an index lists, each query's k largest q . k.

`single` for one token's query heads, `rows` for those of many rows; `arguments` and `scratch`: what
they work on. Indexes of estimates (`sketch`, `blocks`) and of signatures share it.
"""

from .arguments import Products, RowRerank, Wanted
from .scratch import products_scratch, row_rerank_scratch

__all__ = ["Products", "RowRerank", "Wanted", "products_scratch", "row_rerank_scratch"]
