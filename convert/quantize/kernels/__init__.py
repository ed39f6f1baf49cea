"""The encoders' kernels: rows of float32 to rows of blocks (`rows`).

`blocks` has the formats of 32 weights, `superblocks` those of 256. `searches` finds their grids,
`packing` writes their bits.
"""
