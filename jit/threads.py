"""The threads that run kernels: their library and their number.

One thread of the process, the engine's, runs all kernels; it calls `start` first. Numba has three
threading layers. Starting a parallel region takes 1.1 to 1.3 us in `omp`, 1.5 to 1.8 us in `tbb`
and 63 to 110 us in `workqueue` (measured on two cores), so kvarn tries them in this order. It keeps
a layer that the host application chose (NUMBA_THREADING_LAYER, numba.config) or started.

On Linux `omp` is GNU's OpenMP, which needs no Numba. Launches (`launch`) then use it directly, and
only the compilation of a kernel imports Numba.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from types import ModuleType
from typing import Any

from ..system.terminal import say
from . import bundled, forks, libraries
from .errors import JitError
from .machine import physical_cores

ORDER = ["omp", "tbb", "workqueue"]
# How often an idle thread of GNU's OpenMP looks for work before it sleeps. By default it spins for
# 8 ms or more. When another program wants the core, each region then waits for a thread that is not
# running: 8,000 us per region on two busy cores, 60 us with 1,000 looks, 15 us with none. 1,000
# looks take about 50 us, longer than the gaps between the kernels of a token.
_SPIN_COUNT = "1000"
_SPIN_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_GNU = "libgomp.so.1"
_NUMBA_ORDER = ["tbb", "omp", "workqueue"]
"""Numba's default order of layers; any other is the host application's choice."""
HOW_TO_FIX = "pip install tbb, or apt install libgomp1"


class _Local(threading.local):
    n_threads = 0  # of the calling thread, by `start`; Numba's number is per thread, too


_local = _Local()
_requested: int | None = None
_warned = False


def start() -> None:
    """Set how many threads the calling thread runs kernels with."""
    n = _requested or min(physical_cores(), max_threads())
    if _launched():
        import numba

        numba.set_num_threads(n)
    _local.n_threads = n


def start_numba() -> None:
    """Start Numba's threads, once per process, and call `start`; for parallel loops."""
    _launch()
    start()


def set_threads(n: int) -> None:
    """Run later kernels with n threads, in this thread and in threads that then call `start`.

    Raises JitError unless 1 <= n <= max_threads().
    """
    global _requested  # noqa: PLW0603  one number per process
    if not 1 <= n <= max_threads():
        raise JitError(
            f"setting the number of threads to {n}: this process can use 1 to {max_threads()} "
            "(its logical CPUs, or NUMBA_NUM_THREADS)"
        )
    _requested = n
    start()


def n_threads() -> int:
    """The number of threads that run the calling thread's kernels."""
    if not _local.n_threads:
        start()
    return _local.n_threads


@cache
def max_threads() -> int:
    """The largest number of threads: this process's logical CPUs, or NUMBA_NUM_THREADS."""
    if (numba := _imported("numba")) is not None:
        return int(numba.config.NUMBA_NUM_THREADS)
    asked = os.environ.get("NUMBA_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def layer() -> str:
    """Name of the threading layer in use: "omp", "tbb" or "workqueue"."""
    if uses_gnu():
        return "omp"
    import numba

    _launch()
    return str(numba.threading_layer())


@cache
def uses_gnu() -> bool:
    """Load GNU's OpenMP and say whether launches run in its threads.

    False where it is absent, and where the host application chose a layer or started another one.
    """
    if sys.platform != "linux" or not _may_choose():
        return False
    if _launched() and _imported("numba").threading_layer() != "omp":
        return False
    with _spin_setting():
        return any(map(libraries.load, (_GNU, str(bundled.FOLDER / _GNU))))


def _may_choose() -> bool:
    """Whether the host application left the choice of a layer to kvarn."""
    numba = _imported("numba")
    if numba is None:
        return not {"NUMBA_THREADING_LAYER", "NUMBA_THREADING_LAYER_PRIORITY"} & set(os.environ)
    config = numba.config
    order = config.THREADING_LAYER_PRIORITY
    return bool(config.THREADING_LAYER == "default" and order == _NUMBA_ORDER)


def _imported(name: str) -> Any:
    """A module if it has been imported, else None."""
    module: ModuleType | None = sys.modules.get(name)
    return module


def _launched() -> bool:
    """Whether Numba's threads run, started by kvarn or by the host application."""
    parallel = _imported("numba.np.ufunc.parallel")
    return parallel is not None and bool(parallel._is_initialized)


@contextmanager
def _spin_setting() -> Iterator[None]:
    """In the block, which loads OpenMP, the environment holds `_SPIN_COUNT`."""
    if any(name in os.environ for name in _SPIN_SETTINGS):
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


def _launch() -> None:
    forks.check()
    import numba
    from numba.np.ufunc import parallel

    if parallel._is_initialized:
        return
    config, chooses = numba.config, _may_choose()
    host_priority = config.THREADING_LAYER_PRIORITY
    with _spin_setting() if chooses else nullcontext():
        if chooses:
            _preload_tbb()
            config.THREADING_LAYER_PRIORITY = ORDER
        try:
            parallel._launch_threads()
        except ValueError as error:
            raise JitError(f"starting the threading layer: {error}") from error
        finally:
            config.THREADING_LAYER_PRIORITY = host_priority
    if chooses:
        _warn_if_slow(str(numba.threading_layer()))


def _preload_tbb() -> None:
    """Load the library of the `tbb` package, whose folder is not on the loader's path."""
    if sys.platform != "linux":
        return
    import importlib.metadata

    with suppress(importlib.metadata.PackageNotFoundError, OSError):
        for file in importlib.metadata.files("tbb") or ():
            if file.name == "libtbb.so.12":
                ctypes.CDLL(str(file.locate()), mode=ctypes.RTLD_GLOBAL)


def _warn_if_slow(layer: str) -> None:
    global _warned  # noqa: PLW0603
    if layer == "workqueue" and max_threads() > 1 and not _warned:
        _warned = True
        say(
            "found only Numba's workqueue threads, 50 times slower to start than OpenMP's: "
            f"{HOW_TO_FIX}"
        )
