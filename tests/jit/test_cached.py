"""Compiled kernels outlive the process; folders that cannot be used are replaced, in words."""

import os
import subprocess
import sys

import pytest
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

from kvarn.jit import cached

PROGRAM = """
import sys
import numpy as np
import numba
from numba import prange
from numba.core import event
from kvarn.jit import kernel_cache, simd as v
from kvarn.jit.kernel_cache import folders
from kvarn.jit.cached import jit

# The sources may be edited while the tests run.
folders.key, folders.SOURCES = lambda: "key", 40 * "0"
folders.sources_hash = lambda: folders.SOURCES

@jit
def helper(a):
    return v.hsum(v.load_f32(a, 0))

def factory(k):
    @jit(parallel=True)
    def kernel(a, out):
        for i in prange(out.size):
            out[i] = helper(a) * k
    return kernel

heard = []
kernel_cache.on_compile(lambda *told: heard.append(told))
with event.install_recorder("numba:compile") as recorder:
    out = np.zeros(3, np.float32)
    for k in map(int, sys.argv[1:]):
        factory(k)(np.ones(16, np.float32), out)
        assert (out == 16 * k).all(), (k, out)
compiled = sum(e.is_start for _, e in recorder.buffer)
assert numba.config.CACHE_DIR == "", numba.config.CACHE_DIR
assert not kernel_cache.Counts.uncachable
assert kernel_cache.Counts.compiled == compiled
# Each kernel's begin and end, with the functions that it calls.
begun, ended = heard[::2], [(name, seconds > 0) for name, seconds in heard[1::2]]
assert bool(begun) == bool(compiled), (heard, compiled)
assert begun == len(ended) * [("__main__.kernel", None)], heard
assert ended == len(begun) * [("__main__.kernel", True)], heard
print(compiled, kernel_cache.Counts.loaded)
"""

SCRIPT_WITH_A_CLASS = """
from typing import NamedTuple
import numba
from kvarn.jit import kernel_cache
from kvarn.jit.cached import jit

class Pair(NamedTuple):
    x: int
    y: int

@jit
def total(pair):
    return pair.x + pair.y

@jit
def twice(x):
    return 2 * total(Pair(x, 1))

assert twice(3) == 8
print(kernel_cache.Counts.compiled, kernel_cache.Counts.loaded)
"""


@pytest.fixture
def run(tmp_path):
    """Runs PROGRAM for some factors; gives (functions compiled, kernels loaded), stderr."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("parallel=True", "parallel=False"))

    def start(*factors, **environment):
        return subprocess.Popen(
            [sys.executable, program, *map(str, factors)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(process):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return tuple(map(int, out.split())), err

    def both(*factors, **environment):
        return finish(start(*factors, **environment))

    both.start, both.finish, both.program = start, finish, program
    return both


def test_a_second_process_compiles_nothing(run, tmp_path):
    folder = tmp_path / "cache"
    run.program.write_text(PROGRAM)
    assert run(2, KVARN_CACHE=str(folder)) == ((2, 0), "")
    assert run(2, KVARN_CACHE=str(folder)) == ((0, 1), "")
    # A kernel of the same factory, compiled by another process, is not taken for the first one.
    assert run(3, KVARN_CACHE=str(folder)) == ((1, 1), "")
    assert run(2, 3, KVARN_CACHE=str(folder)) == ((0, 2), "")


def test_damaged_files_are_compiled_anew(run, tmp_path):
    folder = tmp_path / "cache"
    run(2, KVARN_CACHE=str(folder))
    files = sorted(folder.rglob("*.kernel"))
    assert len(files) == 2
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    files[0].write_bytes(b"")
    assert run(2, KVARN_CACHE=str(folder)) == ((2, 0), "")


def test_a_class_of_a_script_does_not_break_its_kernels(run, tmp_path):
    """A process that compiles at the same time, or was killed, leaves one file of the two."""
    folder = tmp_path / "cache"
    run.program.write_text(SCRIPT_WITH_A_CLASS)
    assert run(KVARN_CACHE=str(folder)) == ((2, 0), "")
    (caller,) = folder.rglob("twice-*.kernel")
    caller.unlink()
    assert run(KVARN_CACHE=str(folder))[0][0] == 2
    assert run(KVARN_CACHE=str(folder)) == ((0, 1), "")


def test_processes_that_compile_at_once_leave_whole_files(run, tmp_path):
    folder = tmp_path / "cache"
    processes = [run.start(2, 3, KVARN_CACHE=str(folder)) for _ in range(2)]
    for process in processes:
        run.finish(process)
    assert not list(folder.rglob("*.tmp"))
    assert run(2, 3, KVARN_CACHE=str(folder)) == ((0, 2), "")


def test_unusable_folder_is_said_once_and_replaced(run, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    where = {"KVARN_CACHE": str(blocked), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    (counts, output) = run(2, **where)
    assert counts == (2, 0)
    assert output.count("\n") == 1
    assert "cannot keep compiled kernels" in output and str(tmp_path / "xdg/kvarn") in output
    assert run(2, **where) == ((0, 1), "")


def test_missing_functions_of_the_process_are_provided():
    rtsys.initialize(cpu_target.target_context)
    refreshed = []

    class Context:
        def refresh(self):
            refreshed.append(self)

    cached._register(("Py_IncRef", "sqrt"), Context())
    assert refreshed == []
    cached._register(("Py_IncRef", "no_such_function_anywhere"), Context())
    assert len(refreshed) == 1
