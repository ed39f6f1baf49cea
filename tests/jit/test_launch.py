"""Kernels by address: arguments arrive, parts cover the work, graphs repeat what was recorded."""

import os
import subprocess
import sys
from importlib import import_module
from pkgutil import walk_packages

import numpy as np
import pytest

from kvarn import jit, ops
from kvarn.jit import threads
from kvarn.jit.errors import JitError
from kvarn.jit.launch import Table, record
from kvarn.jit.launch.atomics import take
from kvarn.jit.launch.define import CompiledStep, step
from kvarn.jit.launch.views import lent
from kvarn.jit.simd import load_one_f32, store


@step("iiff")
def scale_and_shift(part, parts, ticket, x, n, factor, shift):
    """x = factor x + shift for n floats at an address."""
    for i in range(n * part // parts, n * (part + 1) // parts):
        store(x, 4 * i, np.float32(load_one_f32(x, 4 * i) * factor + shift))


@step("ii")
def count(part, parts, ticket, out, n):
    """out[i] += 1, threads taking i one by one."""
    i = take(ticket)
    while i < n:
        store(out, 4 * i, load_one_f32(out, 4 * i) + np.float32(1))
        i = take(ticket)


ARRAYS = "u4:3 i8 f4:2"


@step("i")
def describe(part, parts, ticket, table):
    """out[row] = the dimensions of two arrays, and an element of each."""
    a, b, out = lent(table, ARRAYS)
    out[0, 0], out[0, 1], out[0, 2] = a.shape
    out[1, 0], out[1, 1], out[1, 2] = len(b), a[1, 2, 3], b[-1]


@pytest.fixture(params=[1, 2])
def n_threads(request):
    if request.param > threads.max_threads():
        pytest.skip("one thread is all there is")
    before = threads.n_threads()
    threads.set_threads(request.param)
    yield request.param
    threads.set_threads(before)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_step_runs_at_once(n_threads, parallel):
    x = np.arange(1001, dtype=np.float32)
    scale_and_shift(x.ctypes.data, x.size, 2.0, -0.5, parallel=parallel)
    np.testing.assert_array_equal(x, 2 * np.arange(1001) - 0.5)


def test_a_graph_runs_what_was_recorded_in_its_order_and_as_often_as_asked(n_threads):
    x = np.ones(100, np.float32)

    def work() -> None:
        for factor, shift, parallel in ((3.0, 0.0, True), (1.0, 2.0, False), (2.0, 0.0, True)):
            scale_and_shift(x.ctypes.data, x.size, factor, shift, parallel=parallel)

    graph = record(work)
    assert len(graph) == 3
    assert (x == 1).all()
    graph.run()
    assert (x == 10).all()
    graph.run()
    assert (x == 64).all()


def test_steps_of_a_group_have_a_ticket_each_and_start_anew(n_threads):
    outs = np.zeros((5, 333), np.float32)

    def work() -> None:
        for out in outs:
            count(out.ctypes.data, out.size, group=7)
        count(outs[0].ctypes.data, outs[0].size, group=8)

    graph = record(work)
    for n in range(1, 4):
        graph.run()
        assert (outs[0] == 2 * n).all()
        assert (outs[1:] == n).all()


def test_arrays_are_found_by_the_address_of_their_table():
    a, b = np.arange(60, dtype=np.uint32).reshape(3, 4, 5), np.array([7, 8], np.int64)
    table, out = Table(ARRAYS), np.zeros((2, 3), np.float32)
    for offset in (0, 1000):
        describe(table(a + np.uint32(offset), b - offset, out), parallel=False)
        np.testing.assert_array_equal(out, [[3, 4, 5], [2, 33 + offset, 8 - offset]])


def test_a_table_follows_each_array_that_changes():
    a, b = np.arange(60, dtype=np.uint32).reshape(3, 4, 5), np.array([7, 8], np.int64)
    table, out = Table(ARRAYS), np.zeros((2, 3), np.float32)
    smaller, other = a[:2], b - 1000
    for first, second in ((a, b), (smaller, b), (smaller, other), (a, other), (a, b)):
        with pytest.raises(JitError, match="array 1 of a table"):
            table(smaller, other[None], out)
        describe(table(first, second, out), parallel=False)
        expected = [[len(first), 4, 5], [2, 33, second[1]]]
        np.testing.assert_array_equal(out, expected)


def test_a_table_refuses_what_its_step_would_misread():
    table, b, out = Table(ARRAYS), np.zeros(2, np.int64), np.zeros((2, 3), np.float32)
    a = np.zeros((3, 4, 5), np.uint32)
    with pytest.raises(JitError, match=r"array 0 of a table is int32 .* expected uint32 of 3"):
        table(a.astype(np.int32), b, out)
    with pytest.raises(JitError, match="array 1 of a table"):
        table(a, b[None], out)
    with pytest.raises(JitError, match=r"array 2 of a table .* contiguous"):
        table(a, b, out.T)
    with pytest.raises(JitError, match="a table of 3 arrays, not of 2"):
        table(a, b)
    with pytest.raises(JitError, match="recording a step with arrays"):
        record(lambda: describe(table(a, b, out)))


def test_more_arguments_than_a_record_holds_are_refused():
    with pytest.raises(JitError, match="15 arguments, at most 14"):
        CompiledStep("i" * 15, (), scale_and_shift.kernel.py_func)


def test_an_error_while_recording_ends_the_recording():
    def work() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        record(work)
    x = np.ones(3, np.float32)
    scale_and_shift(x.ctypes.data, 3, 1.0, 1.0)
    assert (x == 2).all()


FORKED = """
import os
import numpy as np
from kvarn.jit import threads
from kvarn.ops import pointwise
from kvarn.jit.errors import JitError

x = np.ones((1, 64), np.float32)
pointwise.scale(x, 2.0)
child = os.fork()
if not child:
    try:
        pointwise.scale(x, 2.0)
    except JitError as error:
        os._exit(7 if "was forked" in str(error) else 1)
    os._exit(0)
print(threads.uses_gnu(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
pointwise.scale(x, 2.0)
assert (x == 4).all()
"""


def test_a_forked_process_says_that_it_has_no_threads():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=120
    )
    uses_gnu, code = done.stdout.split()
    if uses_gnu != "True":
        pytest.skip("steps do not run in the threads of GNU's OpenMP here")
    assert code == "7"


FEWER = """
import numpy as np
from kvarn.jit import threads
from kvarn.ops import pointwise

threads.set_threads(threads.max_threads())
x = np.ones((64, 1024), np.float32)
pointwise.scale(x, 2.0)
assert (x == 2).all()
print(threads.n_threads())
"""


def test_all_parts_are_done_where_openmp_gives_fewer_threads():
    done = subprocess.run(
        [sys.executable, "-c", FEWER],
        env={**os.environ, "OMP_THREAD_LIMIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == threads.max_threads()


def test_no_module_that_is_imported_late_takes_the_place_of_a_function():
    found = [m for room in (jit, ops) for m in walk_packages(room.__path__, f"{room.__name__}.")]
    modules = {m.name: import_module(m.name) for m in found}
    for name in (m.name for m in found if m.ispkg):
        for x in getattr(modules[name], "__all__", ()):
            assert getattr(modules[name], x) is not modules.get(f"{name}.{x}"), f"{name}.{x}"
