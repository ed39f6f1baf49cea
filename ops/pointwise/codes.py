"""The operations of the elementwise kernels, by number. Imports no Numba."""

SWIGLU, GEGLU, ADD, SCALE, SOFTCAP, CLAMPED_SWIGLU, SIGMOID = range(7)
GELU, RELU_SQUARED, MULTIPLY, SOFTPLUS = range(7, 11)
