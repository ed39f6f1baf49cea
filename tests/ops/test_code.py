"""Steps come back by their machine code alone, in another process than the one that compiled it."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np
from kvarn.ops import cache
from kvarn.ops.simd import load_one_f32, store
from kvarn.ops.steps import step

# The sources may be edited while the tests run.
cache.cache_dir.key = lambda: "key"
cache.cache_dir.sources_hash = lambda: cache.cache_dir.SOURCES

@step("iif")
def scale(part, parts, ticket, x, n, factor):
    for i in range(n * part // parts, n * (part + 1) // parts):
        store(x, 4 * i, np.float32(load_one_f32(x, 4 * i) * factor))

@step("i")
def allocate(part, parts, ticket, x):
    made = np.arange(5)  # of memory that Numba counts
    store(x, 4 * part, np.float32(made[part]))

x = np.ones(9, np.float32)
scale(x.ctypes.data, 9, 3.0)
assert (x == 3).all(), x
print(cache.Counts.compiled, cache.Counts.loaded, len(scale._entry.overloads))
allocate(x.ctypes.data, parallel=False)
assert x[0] == 0, x
print(cache.Counts.compiled, cache.Counts.loaded, len(allocate._entry.overloads))
"""


@pytest.fixture
def run(tmp_path):
    """Runs PROGRAM: kernels compiled, loaded and rebuilt, after the first step and the second."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def start() -> list[int]:
        done = subprocess.run(
            [sys.executable, tmp_path / "program.py"],
            env={**os.environ, "KVARN_CACHE": str(tmp_path / "kept"), "NUMBA_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [int(number) for number in done.stdout.split()]

    return start


def test_a_step_comes_back_by_its_code_and_one_that_needs_numba_by_its_kernel(run, tmp_path):
    compiled, loaded, rebuilt, *_ = run()
    assert compiled > 0
    assert (loaded, rebuilt) == (0, 1)
    # What launches steps, and one of them by code alone; the other with all that Numba kept.
    assert run() == [0, 2, 0, 0, 3, 1]
    [code] = tmp_path.rglob("*.code")
    data = bytearray(code.read_bytes())
    data[-1] ^= 1
    code.write_bytes(data)
    assert run() == [0, 2, 1, 0, 3, 1]
