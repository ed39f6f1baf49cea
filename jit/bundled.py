"""The folder `bundled` that an installation of the package may have. Imports no Numba.

    bundled/
      ├─ targets.json       [["x86-64-v3", "+avx,+avx2,…"], …]: CPUs, best first
      ├─ kernels/<key>/     kernels that were compiled ahead for each CPU (`kernel_cache`)
      └─ libgomp.so.1       GNU's OpenMP, for systems without it

`make wheel` and `python -m kvarn.runtime.capi --bundle` make it. Elsewhere there is none. Machine
code depends on no version of Python or NumPy, so that these kernels serve all of them.
"""

import json
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "bundled"


class Target(NamedTuple):
    """A CPU as LLVM names it, and its features: "+avx,+avx2"."""

    cpu: str
    features: str

    @property
    def needs(self) -> frozenset[str]:
        """Its features by their names: "avx2"."""
        return frozenset(feature.removeprefix("+") for feature in self.features.split(","))

    def runs_on(self, having: frozenset[str]) -> bool:
        """Whether a CPU with these features ("avx2") can run its code."""
        return self.needs <= having


def targets() -> list[Target]:
    """The CPUs of the kernels that were compiled ahead, best first; none where the file is
    damaged."""
    return _read()[0]


def is_damaged() -> bool:
    """Whether the installation has kernels and its list of their CPUs cannot be read."""
    return _read()[1]


def _read() -> tuple[list[Target], bool]:
    try:
        pairs = json.loads((FOLDER / "targets.json").read_text("utf-8"))
        found = [Target(str(cpu), str(features)) for cpu, features in pairs]
    except FileNotFoundError:
        return [], False
    except (OSError, ValueError, TypeError):
        return [], True
    return found, False
