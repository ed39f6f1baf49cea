"""Attention to the tokens that were not chosen, by the means of their blocks (`topk --tail means`).

`layout` draws what is stored of the blocks of similar keys and `build` writes it; `attend` merges
them with attention to the chosen tokens; `api` has the wrappers.
"""

from .api import MeansScratch, add_means, block_means
from .layout import means_item_bytes

__all__ = ["MeansScratch", "add_means", "block_means", "means_item_bytes"]
