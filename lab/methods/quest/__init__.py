"""Quest: the least and the greatest key of each tile of 16 tokens, which bound its products.

`method` has the options, `index` the column. `layout` draws what is stored of a segment, `build`
writes it, `scan` ranks the tiles; `api` has the wrappers of these kernels.
"""

from .method import Quest

__all__ = ["Quest"]
