"""Plain NumPy versions of the operations: what the kernels are held against.

Slow, short, and without Numba.
"""
