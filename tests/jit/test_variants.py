"""The kernels of a CPU without AVX-512 pass their tests, too, where this one has it.

The tests run once more in another process, which compiles for a CPU of 2013 (Intel Haswell).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding as llvm

from kvarn.jit.variant import NEEDS

OPS = Path(__file__).parents[1] / "ops"
SHARES = {
    "attention": (
        "attention/test_attention.py attention/test_gathered.py",
        "not 512-f16 and not 512-q8_0 and not 8-f16 and not 256-f16",
    ),
    "linear": ("linear/test_linear.py", ""),
    "exact": (
        "evict/test_evict.py evict/test_staged.py select/test_exact.py",
        "not 5-1 and not 3-3",
    ),
    "signatures": (
        "select/test_hamming.py select/test_encode.py",
        "not 32-1-1 and not promises and not equal",
    ),
    "sketches": (
        "select/test_sketch.py select/test_means.py",
        "not 128 and not 512 and not 576-f16 and not 576-q8_0",
    ),
}
"""Files, and which of their tests: those left out need kernels that differ from others' only in the
length of rows or the number of query heads, in no instruction."""


def _features():
    """This CPU's without all of AVX-512, in LLVM's words."""
    flags = llvm.get_host_cpu_features()
    flags.update({feature: False for feature in flags if feature.startswith("avx512")})
    return flags.flatten()


@pytest.mark.parametrize("files", [files for files, _ in SHARES.values()], ids=SHARES)
def test_there_are_such_files(files):
    """Also where the next test is skipped."""
    assert all((OPS / name).is_file() for name in files.split())


@pytest.mark.skipif(
    not all(llvm.get_host_cpu_features().get(need) for need in NEEDS["avx512"]),
    reason="this CPU has no AVX-512: its kernels run in all other tests",
)
@pytest.mark.skipif(
    any(name in os.environ for name in ("KVARN_SIMD", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")),
    reason="runs in a process with a variant given",
)
@pytest.mark.parametrize(("files", "tests"), SHARES.values(), ids=SHARES)
def test_kernels_for_avx2(files, tests):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow and not gpu"),
            *("-k", tests, *(str(OPS / name) for name in files.split())),
        ],
        env={**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": _features()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
