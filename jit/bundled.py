"""The folder `bundled` that an installation of the package may have. Imports no Numba.

    bundled/
      ├─ targets.json       [["x86-64-v3", "+avx,+avx2,…"], …]: CPUs, best first
      ├─ kernels/<key>/     kernels that were compiled ahead for each CPU (`kernel_cache`)
      └─ libgomp.so.1       GNU's OpenMP, for systems without it

`python -m kvarn.runtime.capi --bundle` makes it. Elsewhere there is none.
"""

import json
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "bundled"


class Target(NamedTuple):
    """A CPU as LLVM names it, and its features: "+avx,+avx2"."""

    cpu: str
    features: str

    def runs_on(self, having: frozenset[str]) -> bool:
        """Whether a CPU with these features ("avx2") can run its code."""
        return {feature.removeprefix("+") for feature in self.features.split(",")} <= having


def targets() -> list[Target]:
    """The CPUs of the kernels that were compiled ahead, best first."""
    try:
        text = (FOLDER / "targets.json").read_text()
    except FileNotFoundError:
        return []
    return [Target(*target) for target in json.loads(text)]
