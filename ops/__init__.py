"""CPU kernels: for each operation a plain NumPy reference, a kernel and a wrapper that checks.

Knows nothing of models or files. Importing this package does not import Numba; its modules do.
"""
