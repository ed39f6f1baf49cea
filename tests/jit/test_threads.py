"""The threading layer is the best that loads unless the host chose one; counts are obeyed."""

import os
import subprocess
import sys

import pytest

from kvarn.jit import threads
from kvarn.jit.errors import JitError

PROGRAM = """
import sys
import numba
if "host" in sys.argv:
    @numba.njit(parallel=True)
    def region(n):
        total = 0
        for i in numba.prange(n):
            total += i
        return total
    assert region(5) == 10
from kvarn.jit import threads
threads.start()
assert numba.config.THREADING_LAYER_PRIORITY == ["tbb", "omp", "workqueue"]
print(threads.layer(), threads.n_threads())
"""


def run(*arguments, program=PROGRAM, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split(), done.stderr


def test_a_layer_chosen_by_the_host_is_kept():
    (layer, _), output = run(NUMBA_THREADING_LAYER="workqueue")
    assert layer == "workqueue"
    assert output == ""
    (started, _), _ = run("host")
    assert started in threads.ORDER


def test_openmp_threads_soon_sleep_unless_the_user_says_otherwise():
    unset = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    program = f"import os; [os.environ.pop(name, 0) for name in {unset}]\n" + PROGRAM
    program += f"import os; assert not {unset} & set(os.environ)\n"
    (layer, _), output = run(program=program, OMP_DISPLAY_ENV="verbose")
    if layer != "omp" or "GOMP_SPINCOUNT" not in output:
        pytest.skip("GNU's OpenMP is not there")
    assert f"GOMP_SPINCOUNT = '{threads._SPIN_COUNT}'" in output
    _, output = run(OMP_DISPLAY_ENV="verbose", GOMP_SPINCOUNT="77")
    assert "GOMP_SPINCOUNT = '77'" in output


def test_only_workqueue_is_said_with_the_remedy():
    # As on an image without libgomp and tbb: the modules that load them fail to.
    pools = {f"numba.np.ufunc.{name}pool": None for name in ("omp", "tbb")}
    hide = f"import sys; sys.modules.update({pools})\n"
    hide += "from kvarn.jit import threads; threads._GNU = 'libgomp-is-not-here.so'\n"
    (layer, _), output = run(program=hide + PROGRAM, NUMBA_NUM_THREADS="2")
    assert layer == "workqueue"
    assert output.count("\n") == 1
    assert threads.HOW_TO_FIX in output


def test_number_of_threads():
    most = threads.max_threads()
    try:
        threads.set_threads(1)
        assert threads.n_threads() == 1
        threads.start()
        assert threads.n_threads() == 1
        threads.set_threads(most)
        assert threads.n_threads() == most
        for n in (0, -1, most + 1):
            with pytest.raises(JitError, match=f"threads to {n}: this process can use 1 to {most}"):
                threads.set_threads(n)
        assert threads.n_threads() == most
    finally:
        threads._requested = None
        threads.start()
    assert threads.n_threads() == min(threads.physical_cores(), most)


def test_numba_num_threads_bounds_the_default():
    (_, n), _ = run(NUMBA_NUM_THREADS="1")
    assert n == "1"
