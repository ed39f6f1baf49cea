"""The encoders' kernels: rows of float32 to rows of blocks (`rows`).

`rounding` has formats whose grid the largest weight of a block fixes, as gguf-py has it; `blocks`,
`scaled` and `offset` search for a better one (`symmetric`, `affine`); `packing` writes the bits.
"""
