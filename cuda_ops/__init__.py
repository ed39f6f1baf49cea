"""GPU kernels in Triton over torch tensors: the operations of `ops`, by the same names.

Imported only for `--device cuda`; knows what `ops` knows, and of `ops` only its table of types.
Without a GPU the same kernels run in Triton's interpreter and are compiled ahead (`ahead`).
"""
