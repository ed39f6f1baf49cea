"""How kernels become machine code: Numba's compiler as kvarn uses it, the cache of what it made,
SIMD code by variant, threads, launching. What is computed is in ops/, the floor above.
"""
