"""Compiles a wheel's kernels for one CPU, which the environment names.

python -m lab.wheels.compile MACHINE BUNDLED MODELS WEIGHTS HEADS
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from lab.arm.compile import pretend


def main(machine: str, bundled: str, models: str, n_weights: str, n_heads: str) -> int:
    """Compile into the folder BUNDLED, with models that it writes to MODELS, for so many of
    `WEIGHTS` and `HEADS`."""
    if machine != platform.machine():
        pretend()
    from kvarn.jit import variant
    from kvarn.runtime.capi.bundle import compile_into

    from .needs import tasks

    folder = Path(models, variant.CPU)  # the processes for other CPUs write models of their own
    folder.mkdir(parents=True, exist_ok=True)
    return compile_into(Path(bundled), tasks(folder, int(n_weights), int(n_heads)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
