"""The fewest of the listed tokens that hold a share of each query head's softmax.

`method` has the options and the index; `api` has the wrapper of the kernel in `scan`.
"""

from .method import Covered

__all__ = ["Covered"]
