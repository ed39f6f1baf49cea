"""CPU kernels: for each operation a plain NumPy reference, a kernel and a wrapper that checks.

Knows nothing of models or files. Numba is imported where a kernel has to be compiled.
"""
