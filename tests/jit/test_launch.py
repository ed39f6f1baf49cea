"""Kernels by address: arguments arrive, parts cover the work, graphs repeat what was recorded."""

import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from pkgutil import walk_packages
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from kvarn import jit, ops
from kvarn.jit import threads
from kvarn.jit.errors import JitError
from kvarn.jit.launch import Arguments, record
from kvarn.jit.launch.arguments import F32_2D, I64_1D, Annotated
from kvarn.jit.launch.atomics import take
from kvarn.jit.launch.define import CompiledKernel, Share, kernel
from kvarn.jit.launch.launcher import LONG, Stopped, stopping_at
from kvarn.jit.simd import load_one_f32, store


@kernel
def scale_and_shift(share: Share, x: int, n: int, factor: float, shift: float):
    """x = factor x + shift for n floats at an address."""
    for i in range(n * share.part // share.parts, n * (share.part + 1) // share.parts):
        store(x, 4 * i, np.float32(load_one_f32(x, 4 * i) * factor + shift))


@kernel
def count(share: Share, out: int, n: int):
    """out[i] += 1, threads taking i one by one."""
    i = take(share.ticket)
    while i < n:
        store(out, 4 * i, load_one_f32(out, 4 * i) + np.float32(1))
        i = take(share.ticket)


class Inner(NamedTuple):
    factor: float
    shift: int


class Nested(NamedTuple):
    numbers: Inner
    c: I64_1D


class Arrays(NamedTuple):
    a: Annotated[NDArray[np.uint32], 3]
    b: I64_1D
    inner: Inner
    nested: Nested
    out: F32_2D


@kernel
def describe(share: Share, arrays: Arrays, numbers: Inner, last: int):
    """out[row] = the dimensions of two arrays, an element of each, and the numbers."""
    out, a, b = arrays.out, arrays.a, arrays.b
    out[0, 0], out[0, 1], out[0, 2] = a.shape
    out[1, 0], out[1, 1], out[1, 2] = len(b), a[1, 2, 3], b[-1]
    out[2, 0], out[2, 1], out[2, 2] = arrays.inner.factor, arrays.inner.shift, last
    out[3, 0], out[3, 1], out[3, 2] = numbers.factor, numbers.shift, a[1][2][3]
    nested = arrays.nested
    out[4, 0], out[4, 1], out[4, 2] = len(nested.c), nested.c[-1], nested.numbers.factor


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


@kernel
def set_word(share: Share, place: int):
    """The int64 at an address becomes 1."""
    store(place, 0, np.int64(1))


@kernel
def spin(share: Share, x: int, n: int):
    """Take n steps that each depend on the one before."""
    for _ in range(n):
        store(x, 0, np.float32(load_one_f32(x, 0) * 0.5 + 1.0))


def test_a_flag_ends_a_graph_between_two_phases(n_threads):
    x, flag = np.ones(100, np.float32), np.zeros(1, np.int64)

    def work() -> None:
        scale_and_shift(x.ctypes.data, x.size, 3.0, 0.0)
        set_word(flag.ctypes.data)
        scale_and_shift(x.ctypes.data, x.size, 2.0, 0.0)

    graph = record(work)
    with stopping_at(flag.ctypes.data):
        with pytest.raises(Stopped):
            graph.run()
        assert (x == 3).all()
        with pytest.raises(Stopped):
            scale_and_shift(x.ctypes.data, x.size, 5.0, 0.0)
    assert (x == 3).all()
    graph.run()  # whose flag nobody reads any more
    assert (x == 18).all()


def test_what_took_long_lets_other_threads_run_the_next_time():
    if not threads.uses_gnu():
        pytest.skip("Numba's threads keep the interpreter's lock")
    x, seen, done = np.ones(1, np.float32), [], threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            seen.append(time.perf_counter())

    def launched(n: int) -> tuple[float, int]:
        """Seconds, and how often the other thread ran well within them."""
        begin = time.perf_counter()
        spin(x.ctypes.data, n, parallel=False)
        end = time.perf_counter()
        time.sleep(0.02)
        return end - begin, sum(begin + 0.006 < at < end - 0.006 for at in seen)

    n = 1_000_000
    while min(launched(n)[0] for _ in range(3)) < 0.1:  # other programs may stop one
        n *= 2
    launched(1)
    other = threading.Thread(target=watch)
    other.start()
    try:
        assert launched(n)[1] == 0  # what it did before was short
        assert spin.long and LONG <= 1e8
        assert launched(n)[1] > 0
        launched(1)
        assert not spin.long
    finally:
        done.set()
        other.join()


def made_arrays(n: int = 3) -> Arrays:
    a, b = np.arange(20 * n, dtype=np.uint32).reshape(n, 4, 5), np.array([7, 8], np.int64)
    nested = Nested(numbers=Inner(1.5, 2), c=np.array([5, 6, 9], np.int64))
    return Arrays(a=a, b=b, inner=Inner(0.25, -9), nested=nested, out=np.zeros((5, 3), np.float32))


def expected(arrays: Arrays, numbers: Inner, last: int) -> list[list[float]]:
    a, b, inner, nested, _ = arrays
    return [
        [*a.shape],
        [len(b), a[1, 2, 3], b[-1]],
        [inner.factor, inner.shift, last],
        [*numbers, a[1, 2, 3]],
        [len(nested.c), nested.c[-1], nested.numbers.factor],
    ]


def test_arguments_are_found_by_name():
    block, arrays, numbers = Arguments(Arrays), made_arrays(), Inner(-0.5, 11)
    for offset in (0, 1000):
        moved = arrays._replace(a=arrays.a + np.uint32(offset), b=arrays.b - offset)
        describe(block.fill(moved), *numbers, 5, parallel=False)
        np.testing.assert_array_equal(arrays.out, expected(moved, numbers, 5))


def test_arguments_follow_each_field_that_changes():
    block, whole, numbers = Arguments(Arrays), made_arrays(), Inner(-0.5, 11)
    smaller, other = whole.a[:2], whole.b - 1000
    nested = whole.nested
    for change in (
        {},
        {"a": smaller},
        {"a": smaller, "b": other},
        {"b": other},
        {"inner": Inner(3.5, 1)},
        {"nested": nested._replace(c=other)},
        {"nested": nested._replace(numbers=Inner(-2.0, 1))},
        {},
    ):
        with pytest.raises(JitError, match=r"Arrays\.b is int64 \(1, 2\), expected int64 of 1"):
            block.fill(whole._replace(a=smaller, b=other[None]))
        arrays = whole._replace(**change)
        describe(block.fill(arrays), *numbers, 7, parallel=False)
        np.testing.assert_array_equal(whole.out, expected(arrays, numbers, 7))


def test_fixed_arguments_may_be_made_and_launched_while_recording():
    blocks, numbers, arrays = [], Inner(-0.5, 11), made_arrays()

    def work() -> None:
        blocks.append(Arguments.fixed(arrays))
        describe(blocks[-1].address, *numbers, 7, parallel=False)

    record(work).run()
    np.testing.assert_array_equal(arrays.out, expected(arrays, numbers, 7))
    with pytest.raises(JitError, match=r"Arrays\.b is"):
        Arguments.fixed(arrays._replace(b=arrays.b[None]))


def test_arguments_that_a_kernel_would_misread_are_refused_by_name():
    block, arrays = Arguments(Arrays), made_arrays()
    with pytest.raises(JitError, match=r"Arrays\.a is int32 .* expected uint32 of 3"):
        block.fill(arrays._replace(a=arrays.a.astype(np.int32)))
    with pytest.raises(JitError, match=r"Arrays\.b is"):
        block.fill(arrays._replace(b=arrays.b[None]))
    nested = arrays.nested._replace(c=arrays.nested.c.astype(np.float32))
    with pytest.raises(JitError, match=r"Arrays\.nested\.c is float32 .* expected int64 of 1"):
        block.fill(arrays._replace(nested=nested))
    with pytest.raises(JitError, match=r"Arrays\.out .* contiguous"):
        block.fill(arrays._replace(out=np.zeros((3, 4), np.float32).T))
    with pytest.raises(JitError, match="recording a launch with Arrays"):
        record(lambda: describe(block.fill(arrays), 0.0, 1, 2))


class Wrong(NamedTuple):
    text: str


class Wide(NamedTuple):
    a: int
    b: int


def test_what_no_record_can_hold_is_refused():
    def many(share: Share, a: Wide, b: Wide, c: Wide, d: Wide, e: Wide, f: Wide, g: Wide, h: int):
        pass

    with pytest.raises(JitError, match="15 words, at most 14"):
        CompiledKernel(many, ())

    def undeclared(x: int):
        pass

    with pytest.raises(JitError, match="not declared as a Share"):
        CompiledKernel(undeclared, ())
    with pytest.raises(JitError, match=r"Wrong\.text is declared as .*str"):
        Arguments(Wrong)


def test_references_to_a_kernels_arrays_are_not_counted():
    fresh = CompiledKernel(describe.kernel.py_func, ())
    for function in (fresh.kernel, fresh._entry):
        function._cache.disable()  # what comes from a file tells nothing of its code
    assert fresh._result is not None
    code = "".join(fresh._entry.inspect_llvm().values())
    assert "describe" in code
    assert "NRT_" not in code


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
