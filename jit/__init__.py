"""How kernels, Python functions in `ops`, become machine code and run.

`cached` compiles a kernel with Numba, or loads what `kernel_cache` keeps of an earlier process.
`variant` chooses the instruction set and `simd` has its vectors. `launch` calls kernels in all
`threads`, at once or as a recorded graph.
"""
