"""Kernels by address: arguments arrive, parts cover the work, graphs repeat what was recorded."""

import os
import threading
import time
from importlib import import_module
from pkgutil import walk_packages

import numpy as np
import pytest

from kvarn import jit, ops
from kvarn.jit import threads
from kvarn.jit.launch import record
from kvarn.jit.launch.atomics import take
from kvarn.jit.launch.define import Share, kernel
from kvarn.jit.launch.launcher import LONG, Stopped, stopping_at
from kvarn.jit.simd import load_one_f32, store

from ..programs import printed


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
    uses_gnu, code = printed(FORKED, timeout=120).split()
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
    done = printed(FEWER, env={**os.environ, "OMP_THREAD_LIMIT": "1"})
    assert int(done) == threads.max_threads()


def test_no_module_that_is_imported_late_takes_the_place_of_a_function():
    infos = [m for room in (jit, ops) for m in walk_packages(room.__path__, f"{room.__name__}.")]
    modules = {m.name: import_module(m.name) for m in infos}
    for name in (m.name for m in infos if m.ispkg):
        for x in getattr(modules[name], "__all__", ()):
            assert getattr(modules[name], x) is not modules.get(f"{name}.{x}"), f"{name}.{x}"
