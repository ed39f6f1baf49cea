"""Numbers of the operations that the elementwise kernels know. Imports no Numba."""

SWIGLU, GEGLU, ADD, SCALE, SOFTCAP = range(5)
