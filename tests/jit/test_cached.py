"""Compiled kernels outlive the process; folders that cannot be used are replaced, in words."""

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from kvarn.jit import cached, kernel_cache
from kvarn.jit.kernel_cache import files, folders

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
folders.key = lambda: "key"
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
kernel_cache.on_compile(heard.append)
with event.install_recorder("numba:compile") as recorder:
    out = np.zeros(3, np.float32)
    for k in map(int, sys.argv[1:]):
        factory(k)(np.ones(16, np.float32), out)
        assert (out == 16 * k).all(), (k, out)
compiled = sum(e.is_start for _, e in recorder.buffer)
assert numba.config.CACHE_DIR == "", numba.config.CACHE_DIR
assert not kernel_cache.Counts.uncachable
assert len(heard) == kernel_cache.Counts.compiled == compiled, (heard, compiled)
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
    (found, said) = run(2, **where)
    assert found == (2, 0)
    assert said.count("\n") == 1
    assert "cannot keep compiled kernels" in said and str(tmp_path / "xdg/kvarn") in said
    assert run(2, **where) == ((0, 1), "")


def _of_name(name, payload):
    """The bytes of a file of this name, whose checksum is right."""
    return hashlib.sha256(f"{folders.key()}/{name}\0".encode() + payload).digest() + payload


class _Evil:
    """Makes a folder when its pickle is read."""

    def __init__(self, ran):
        self.ran = ran

    def __reduce__(self):
        return os.mkdir, (str(self.ran),)


@pytest.mark.parametrize("how", ["leaf", "parent", "link", "owner", "file"])
def test_what_others_can_have_written_is_never_run(places, tmp_path, capsys, how):
    if how in ("owner", "file") and os.geteuid() != 0:
        pytest.skip("needs root, to make what others own")
    roots = [tmp_path / "cache", tmp_path / "home"]
    leaf, home = places(*roots)
    assert _double(7)(1) == 9
    (file,) = leaf.iterdir()
    evil = _of_name(file.name, pickle.dumps(_Evil(tmp_path / "ran")))
    file.write_bytes(evil)
    loose = leaf
    if how == "leaf":
        leaf.chmod(0o2775)
    elif how == "parent":
        loose = roots[0]
        loose.chmod(0o770)
    elif how == "link":
        leaf.chmod(0o775)
        (tmp_path / "link").symlink_to(roots[0])
        roots[0] = tmp_path / "link"
    elif how == "owner":
        os.chown(leaf, 54_321, -1)
    else:
        loose = file
        os.chown(file, 54_321, -1)
        file.chmod(0o600)
    places(*roots)
    assert _double(7)(1) == 9
    said = capsys.readouterr().err
    assert not (tmp_path / "ran").exists() and file.read_bytes() == evil
    assert said.count("\n") == 1 and str(loose) in said
    assert home.exists() == (how != "file")  # one bad file is no reason to leave a good folder
    # Who trusts it runs it: the test can fail.
    for path, mode in ((roots[0].resolve(), 0o755), (leaf, 0o755), (file, 0o644)):
        os.chown(path, os.geteuid(), -1)
        path.chmod(mode)
    places(*roots)
    assert _double(7)(1) == 9
    assert (tmp_path / "ran").exists()


class _Fails:
    def __reduce__(self):
        return int, ("no number",)


WRONG = [
    *(b"", b"\x80", b"no pickle", b"\x80\x04N.", pickle.dumps(_Fails())),
    *(pickle.dumps(other) for other in (5, (), ((), ()), (("a",), (1, 2)), (None, None), {1: 2})),
]


@pytest.mark.parametrize("i", range(len(WRONG) + 1))
def test_wrong_content_under_a_right_checksum_is_compiled_anew(places, tmp_path, i):
    (folder,) = places(tmp_path)
    assert _double(7)(1) == 9
    (file,) = folder.iterdir()
    wrong = [*WRONG, file.read_bytes()[32:-100]][i]
    file.write_bytes(_of_name(file.name, wrong))
    for compiled in (1, 0):  # the second time it was replaced
        before = kernel_cache.Counts.compiled
        assert _double(7)(1) == 9
        assert kernel_cache.Counts.compiled - before == compiled


def test_kernels_of_changed_sources_are_not_kept(monkeypatch):
    written = []
    monkeypatch.setattr(files._Places, "write", lambda name, payload: written.append(name))
    monkeypatch.setattr(folders, "sources_hash", lambda: "edited since")
    assert _double(5)(1) == 7
    assert written == []
    monkeypatch.setattr(folders, "sources_hash", lambda: folders.SOURCES)
    assert _double(6)(1) == 8
    assert len(written) == 1


def test_missing_functions_of_the_process_are_provided(monkeypatch):
    refreshed = []

    class Context:
        def refresh(self):
            refreshed.append(self)

    cached._provide(("Py_IncRef", "sqrt"), Context())
    assert refreshed == []
    cached._provide(("Py_IncRef", "no_such_function_anywhere"), Context())
    assert len(refreshed) == 1


def test_kernels_of_unnameable_things_are_refused():
    lock = type("Lock", (), {"__slots__": ()})()
    with pytest.raises(TypeError, match="not the same in the next process"):
        _kernel(1, lock)


def _kernel(k, other):
    @cached.jit
    def kernel(x):
        return other(x) * k

    return kernel


def _double(k):
    @cached.jit
    def double(x):
        return x * 2 + k

    return double


def test_kernels_of_one_factory_have_files_of_their_own(monkeypatch):
    double, other = _double(0), _double(1)
    names = {
        _kernel(k, helper)._cache.file_name("signature", ())
        for k in (1, 2, 2.0, "2", (2,), True)
        for helper in (double, other)
    }
    assert len(names) == 12
    again = _kernel(1, double)._cache.file_name("signature", ())
    assert again in names
    assert again != _kernel(1, double)._cache.file_name("another", ())
    # A kernel from a file outside ops/ changes its name with the file.
    monkeypatch.setattr(cached, "_outside_source", lambda function: "edited")
    assert again != _kernel(1, double)._cache.file_name("signature", ())
    assert Path(again).suffix == ".kernel"


@cached.jit
def _even(n):
    return n == 0 or _odd(n - 1)


@cached.jit
def _odd(n):
    return n != 0 and _even(n - 1)


def test_kernels_that_call_each_other_have_names():
    names = {kernel._cache.file_name("signature", ()) for kernel in (_even, _odd)}
    assert len(names) == 2
