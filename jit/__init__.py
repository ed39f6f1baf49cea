"""Compiles kernels, Python functions in `ops`, to machine code and runs them.

`cached` compiles a kernel with Numba, or loads the code that `kernel_cache` has from an earlier
process. `variant` chooses the instruction set and `simd` has its vectors. `launch` calls kernels in
all `threads`, at once or as a recorded graph.
"""
