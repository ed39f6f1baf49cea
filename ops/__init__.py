"""CPU kernels: for each operation a plain NumPy reference, a kernel and a wrapper that checks.

Knows no models and no files. Only the compilation of a kernel imports Numba.
"""
