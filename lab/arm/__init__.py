"""kvarn on ARM, in emulation on x86-64: `make test-arm`.

    machine        the folder .arm: an ARM Python with kvarn's packages, under qemu
    ask            in there, sends kernels to `compile`
    compile        outside, compiles them for ARM, which takes a fiftieth of the time
    instructions   whether those are what Numba gives in there
    tokens         greedy ids of the default model, computed on both sides

Emulation tells whether results are right, never how long they take.
"""
