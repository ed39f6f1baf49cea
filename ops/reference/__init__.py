"""The operations in plain NumPy, which tests compare the kernels with: slow, short, no Numba."""
