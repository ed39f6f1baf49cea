"""Compiled kernels outlive the process; folders that cannot be used are replaced, in words."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvarn.jit import cached
from kvarn.jit.kernel_cache import files, folders

PROGRAM = """
import sys
import numpy as np
import numba
from numba import prange
from numba.core import event
from kvarn.jit import kernel_cache as kept, simd as v
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
kept.on_compile(heard.append)
with event.install_recorder("numba:compile") as recorder:
    out = np.zeros(3, np.float32)
    for k in map(int, sys.argv[1:]):
        factory(k)(np.ones(16, np.float32), out)
        assert (out == 16 * k).all(), (k, out)
compiled = sum(e.is_start for _, e in recorder.buffer)
assert numba.config.CACHE_DIR == "", numba.config.CACHE_DIR
assert not kept.Counts.uncachable
assert len(heard) == kept.Counts.compiled == compiled, (heard, compiled)
print(compiled, kept.Counts.loaded)
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
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    where = {"KVARN_CACHE": str(blocked), "TMPDIR": str(temporary)}
    (found, said) = run(2, **where)
    assert found == (2, 0)
    assert said.count("\n") == 1
    assert "cannot keep compiled kernels" in said and str(temporary) in said
    assert run(2, **where) == ((0, 1), "")


def test_full_disk(monkeypatch, tmp_path, capsys):
    def full(path, payload):
        if path.is_relative_to(tmp_path / "home"):
            raise OSError(28, "No space left on device", str(path))
        path.write_bytes(payload)

    monkeypatch.setattr(folders, "candidates", lambda: [tmp_path / "home", tmp_path / "tmp"])
    monkeypatch.setattr(files, "_write", full)
    monkeypatch.setattr(files._Places, "roots", None)
    monkeypatch.setattr(files._Places, "said", False)
    for name in ("a.kernel", "b.kernel"):
        files._Places.write(name, b"x")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "No space left" in said and "KVARN_CACHE" in said
    assert {p.name for p in (tmp_path / "tmp").rglob("*.kernel")} == {"a.kernel", "b.kernel"}


def test_without_any_folder_kernels_are_not_kept(monkeypatch, tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(folders, "candidates", lambda: [blocked / "a", blocked / "b"])
    monkeypatch.setattr(files._Places, "roots", None)
    monkeypatch.setattr(files._Places, "said", False)
    files._Places.write("a.kernel", b"x")
    files._Places.write("b.kernel", b"x")
    assert capsys.readouterr().err.count("cannot keep") == 1


def test_folders_that_others_can_write_to_are_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "candidates", lambda: [tmp_path])
    assert folders.writable(tmp_path) is None
    (folder,) = folders.readable()
    folder.chmod(0o777)
    assert folders.readable() == []
    assert "written by others" in str(folders.writable(tmp_path))
    folder.chmod(0o755)
    assert folders.readable() == [folder]


def test_roots_in_order(monkeypatch, tmp_path):
    monkeypatch.delenv("KVARN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says: ignore it
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folders.candidates()[0] == tmp_path / ".cache" / "kvarn"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folders.candidates()[0] == tmp_path / "xdg" / "kvarn"
    monkeypatch.setenv("KVARN_CACHE", str(tmp_path / "chosen"))
    assert folders.candidates()[0] == tmp_path / "chosen"
    assert all(root.is_absolute() for root in folders.candidates())


def test_pruning_keeps_this_key_and_the_newest(tmp_path):
    names = [f"old{i}" for i in range(5)]
    for age, name in enumerate(names):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - 100 * age,) * 2)
    (tmp_path / folders.key()).mkdir()
    os.utime(tmp_path / folders.key(), (0, 0))
    folders.prune(tmp_path, keep=2)
    assert {p.name for p in tmp_path.iterdir()} == {"old0", "old1", folders.key()}


def test_key_changes_with_any_source(tmp_path):
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "sub").mkdir()
    seen = {folders.sources_hash([tmp_path])}
    (tmp_path / "sub" / "b.py").write_text("2")
    seen.add(folders.sources_hash([tmp_path]))
    (tmp_path / "sub" / "b.py").write_text("3")
    seen.add(folders.sources_hash([tmp_path]))
    (tmp_path / "sub" / "b.py").rename(tmp_path / "c.py")
    seen.add(folders.sources_hash([tmp_path]))
    assert len(seen) == 4


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
