"""Attention to the tokens that were not chosen, by the means of their blocks (`topk --tail means`).

`layout` draws what is stored of the blocks of similar keys and `build` writes it; `attend` merges
them with attention to the chosen tokens, `rows` with that of many rows of a prompt; `api` and
`rows_api` have the wrappers.
"""

from .api import MeansScratch, add_means, block_means
from .layout import means_item_bytes
from .rows_api import RowMeansScratch, add_row_means

__all__ = [
    "MeansScratch",
    "RowMeansScratch",
    "add_means",
    "add_row_means",
    "block_means",
    "means_item_bytes",
]
