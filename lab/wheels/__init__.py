"""Wheels with kernels inside: `make wheel`.

    python -m lab.wheels dist      the sdist, the wheel for any machine, and one with kernels

`needs` lists the models whose kernels a wheel has, `compile` compiles them for one CPU in a process
of its own, `repack` adds them to the wheel. Those for ARM are compiled, and judged, as `lab.arm`
does it.
"""
