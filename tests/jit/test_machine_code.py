"""Kernels come back by their machine code alone, in another process than compiled them."""

import gc
import hashlib
import logging
import os
import pickle
import subprocess
import sys
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.jit import kernel_cache
from kvarn.jit.kernel_cache import Damaged, emit, events, machine_code
from kvarn.jit.launch.lazy import DefinedKernel, LazyKernel

KERNELS = """
from typing import NamedTuple
import numpy as np
from kvarn.jit.simd import load_one_f32, store
from kvarn.jit.launch.arguments import F32_1D, F32_2D
from kvarn.jit.launch.define import Share, kernel

class Columns(NamedTuple):
    rows: F32_2D
    out: F32_1D

@kernel
def add_columns(share: Share, columns: Columns):
    for row in columns.rows:  # slices, references to which Numba would count
        for i, x in enumerate(row[1:]):
            columns.out[i] += x

@kernel
def scale(share: Share, x: int, n: int, factor: float):
    for i in range(n * share.part // share.parts, n * (share.part + 1) // share.parts):
        store(x, 4 * i, np.float32(load_one_f32(x, 4 * i) * factor))

def shift(by):
    @kernel(traits=(by, 77))
    def shift_kernel(share: Share, x: int, n: int):
        for i in range(n * share.part // share.parts, n * (share.part + 1) // share.parts):
            store(x, 4 * i, np.float32(load_one_f32(x, 4 * i) + by))

    return shift_kernel

@kernel
def allocate(share: Share, x: int):
    made = np.arange(5)  # of memory that Numba counts
    store(x, 4 * share.part, np.float32(made[share.part]))
"""
PROGRAM = """
import sys
from typing import NamedTuple
import numpy as np
from kvarn.jit import kernel_cache
from kvarn.jit.kernel_cache import folders
from kvarn.jit.launch import Arguments, lazy_kernel, lazy_kernels
from kvarn.jit.launch.arguments import F32_1D, F32_2D

# The sources may be edited while the tests run.
folders.key, folders.SOURCES = lambda: "key", 40 * "0"
folders.sources_hash = lambda: folders.SOURCES

class Columns(NamedTuple):
    rows: F32_2D
    out: F32_1D

@lazy_kernel
def scale():
    import made
    return made.scale

@lazy_kernel
def allocate():
    import made
    return made.allocate

@lazy_kernel
def add_columns():
    import made
    return made.add_columns

@lazy_kernels
def shift(by):
    import made
    return made.shift(by)

x = np.ones(9, np.float32)
scale(x.ctypes.data, 9, 3.0)
assert (x == 3).all(), x
for by in (1, 5):
    shift(by)(x.ctypes.data, 9)
    assert shift(by).traits == (by, 77)
assert (x == 9).all(), x
columns = Arguments.fixed(Columns(np.ones((3, 5), np.float32), x[:4]))
add_columns(columns.address, parallel=False)
assert (x == [12, 12, 12, 12, 9, 9, 9, 9, 9]).all(), x
print(kernel_cache.Counts.compiled, kernel_cache.Counts.loaded, int("numba" in sys.modules))
allocate(x.ctypes.data, parallel=False)
assert x[0] == 0, x
print(int("numba" in sys.modules))
"""


@pytest.fixture
def run(tmp_path):
    """Runs PROGRAM: kernels compiled and loaded, whether Numba was needed; again for `allocate`,
    which the process tells of."""
    (tmp_path / "made.py").write_text(KERNELS)
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(**environment: str) -> list[int]:
        done = subprocess.run(
            [sys.executable, tmp_path / "program.py"],
            env={**os.environ, "KVARN_CACHE": str(tmp_path / "kept"), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith(
            "kvarn: cannot keep a kernel, importing Numba in every process: __main__.allocate calls"
        )
        assert done.stderr.count("\n") == 1
        return [int(number) for number in done.stdout.split()]

    return start


def test_kernels_come_back_without_numba_unless_they_need_it(run, tmp_path):
    compiled, loaded, *needed = run()
    assert compiled >= 6 and loaded == 0 and needed == [1, 1]
    # What launches kernels, and four of them by code alone; the fifth with all that Numba kept.
    assert run() == [0, 5, 0, 1]
    (damaged,) = tmp_path.rglob("scale-*.code")
    whole = damaged.read_bytes()
    pickled = pickle.dumps(tuple(machine_code.from_bytes(whole[32:])))
    digest = hashlib.sha256(f"key/{damaged.name}\0".encode() + pickled).digest()
    for data in (whole[:-1] + bytes([whole[-1] ^ 1]), digest + pickled):  # a right checksum, too
        damaged.write_bytes(data)
        compiled, _, *needed = run()
        assert (compiled, needed) == (2, [1, 1])  # it alone: its function, and what launches it
        assert run() == [0, 5, 0, 1]


def test_kernels_that_need_numba_are_told_once_and_logged_each(monkeypatch, capsys, caplog):
    monkeypatch.setattr(events._State, "warned", False)
    caplog.set_level(logging.INFO, "kvarn")
    for kernel in ("first", "second"):
        events.tell_not_kept(kernel, "cannot keep a kernel")
    assert capsys.readouterr().err == "kvarn: cannot keep a kernel: first\n"
    assert caplog.messages == [f"cannot keep a kernel: {name}" for name in ("first", "second")]


def test_threads_that_numba_starts_give_the_same(run):
    run()
    assert run(NUMBA_THREADING_LAYER="workqueue")[2:] == [1, 1]


class Plain(DefinedKernel):
    """A kernel that notes, when it is imported and compiled, whether Python looks for garbage."""

    address, kinds, traits = 0, "", ()
    collects: ClassVar[list[bool]] = []

    def __init__(self):
        self.collects.append(gc.isenabled())

    def code(self, symbol):
        self.collects.append(gc.isenabled())
        text = f"define i64 @{symbol}(i64 %a, i64 %b, i64 %c) {{ ret i64 %a }}"
        return emit.compile_text(text, symbol)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_compilation_makes_garbage_wait(places, tmp_path, is_enabled):
    places(tmp_path)
    Plain.collects.clear()
    try:
        if not is_enabled:
            gc.disable()
        LazyKernel(Plain).compile()
        assert (Plain.collects, gc.isenabled()) == ([False, False], is_enabled)
    finally:
        gc.enable()


def test_wrong_content_is_damage_and_not_run():
    good = emit.compile_text("define i64 @named(i64 %a, i64 %b, i64 %c) { ret i64 %a }", "named")
    address, code = machine_code.load(machine_code.to_bytes(good))
    assert address and code == good
    for wrong in (good._replace(object=b"no object file"), good._replace(symbol="another")):
        with pytest.raises(Damaged):
            machine_code.load(machine_code.to_bytes(wrong))


ROOT = """
declare double @sqrt(double)
declare double @{other}(double)

define i64 @rooted(i64 %a, i64 %b, i64 %c) {{
  %x = sitofp i64 %a to double
  %y = call double @sqrt(double %x)
  %z = call double @{other}(double %y)
  %n = fptosi double %z to i64
  ret i64 %n
}}
"""
LINKS = """
import ctypes, sys
from pathlib import Path
from kvarn.jit.kernel_cache import machine_code

address, _ = machine_code.load(Path(sys.argv[1]).read_bytes())
print(ctypes.CFUNCTYPE(*4 * [ctypes.c_int64])(address)(81, 0, 0), "numba" in sys.modules)
"""


def test_functions_of_the_c_library_are_there_before_anything_was_compiled(tmp_path):
    """The first code that a process links may call them."""
    path = tmp_path / "rooted.code"
    made = emit.compile_text(ROOT.format(other="fabs"), "rooted")
    path.write_bytes(machine_code.to_bytes(made))
    assert made.called == ("fabs", "sqrt")
    done = subprocess.run(
        [sys.executable, "-c", LINKS, path], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("9 False\n", "")


def test_a_function_that_is_nowhere_is_told(places, tmp_path, capsys):
    """Such a kernel is there and of no use, which is another thing than no kernel."""
    places(tmp_path)
    made = emit.compile_text(ROOT.format(other="no_such_function_anywhere"), "rooted")
    with pytest.raises(kernel_cache.Unlinkable, match=r"calls .*: no_such_function_anywhere$"):
        machine_code.load(machine_code.to_bytes(made))
    name = f"rooted-{'0' * 40}.code"
    kernel_cache.keep(name, machine_code.to_bytes(made))
    for _ in range(2):
        assert kernel_cache.find(name, machine_code.load) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kvarn: cannot use compiled kernels, compiling again: {name} calls")
    assert "no_such_function_anywhere" in line


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)
CODES = st.builds(
    emit.Code,
    st.lists(NAMES).map(tuple),
    NAMES,
    st.text("if"),
    st.lists(st.integers(-(2**63), 2**63 - 1)).map(tuple),
    st.binary().map(lambda data: b"\x7fELF\2" + data),
)


@given(CODES)
def test_a_codes_bytes_give_it_back(made):
    assert machine_code.from_bytes(machine_code.to_bytes(made)) == made


@given(CODES, st.data())
def test_other_bytes_are_damaged_or_a_code_of_just_these_bytes(made, data):
    good = bytearray(machine_code.to_bytes(made))
    at = data.draw(st.integers(0, len(good) - 1))
    end = at + data.draw(st.integers(0, 8))
    good[at:end] = data.draw(st.binary(max_size=8))
    try:
        code = machine_code.from_bytes(bytes(good))
    except Damaged:
        return
    assert machine_code.to_bytes(code) == good


@given(st.binary(max_size=60))
def test_bytes_of_no_code_are_damaged(data):
    for head in (b"", b"kvarn1.c"):
        with pytest.raises(Damaged):
            machine_code.from_bytes(head + data)


def test_whatever_is_missing_or_too_much_is_damage():
    whole = machine_code.to_bytes(emit.Code(("sqrt", "exp"), "f", "iif", (-1, 77), b"\x7fELF\2..."))
    for n in range(len(whole)):
        with pytest.raises(Damaged):
            machine_code.from_bytes(whole[:n])
    with pytest.raises(Damaged):
        machine_code.from_bytes(whole + b"\0")
