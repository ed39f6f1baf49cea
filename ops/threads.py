"""The threads that run parallel kernels: which threading layer, and how many.

One thread of the process, the engine's, runs all kernels; it calls `start` first.  Numba's layers
differ in what a parallel region costs (measured on two cores): `omp` 1.1 to 1.3 us, `tbb` 1.5 to
1.8 us, `workqueue` 63 to 110 us.  So the order is omp, tbb, workqueue; a layer that the host
application asked for (NUMBA_THREADING_LAYER, numba.config) or already started is kept.
"""

import ctypes
import importlib.metadata
import os
import sys
import threading
from contextlib import suppress

import numba
from numba.np.ufunc import parallel

from .errors import OpsError
from .machine import physical_cores

ORDER = ["omp", "tbb", "workqueue"]
# How often GNU's OpenMP looks for work before its threads sleep. Its own 8 ms or more are fine
# until another program wants a core: then each region waits for a thread that is not running.
# Measured on two busy cores: 8,000 us per region by default, 60 us with 1,000 looks, 15 us with
# none; 1,000 last about 50 us, which bridges the gaps between the kernels of a token.
_LOOKS = "1000"
_WAIT_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
HOW_TO_FIX = "pip install tbb, or apt install libgomp1"


class _Here(threading.local):
    """What the calling thread has been given by `start`, 0 before; Numba too counts by thread."""

    n_threads = 0


_here = _Here()
_wanted: int | None = None
_said_slow = False

__all__ = ["layer", "max_threads", "n_threads", "physical_cores", "set_threads", "start"]


def start() -> None:
    """Choose the layer, once per process, and give the calling thread its number of threads."""
    _launch()
    n = _wanted or min(physical_cores(), max_threads())
    numba.set_num_threads(n)
    _here.n_threads = n


def set_threads(n: int) -> None:
    """Run kernels with n threads from now on, for the calling thread and those that `start`.

    Raises OpsError unless 1 <= n <= max_threads().
    """
    global _wanted  # noqa: PLW0603  the number belongs to the process, as the layer does
    if not 1 <= n <= max_threads():
        raise OpsError(
            f"setting the number of threads to {n}: this process can use 1 to {max_threads()} "
            "(its logical CPUs, or NUMBA_NUM_THREADS)"
        )
    _wanted = n
    start()


def n_threads() -> int:
    """Threads that a parallel kernel uses when the calling thread runs it."""
    # Asked for by every matrix of a token: Numba's own count is 0.5 us away, 5 us out of cache.
    if _here.n_threads:
        return _here.n_threads
    _launch()
    return int(parallel._get_num_threads())


def max_threads() -> int:
    """The most threads there can be: logical CPUs of the affinity, or NUMBA_NUM_THREADS."""
    return int(numba.config.NUMBA_NUM_THREADS)


def layer() -> str:
    """Name of the layer in use: "omp", "tbb" or "workqueue"."""
    _launch()
    return str(numba.threading_layer())


def _launch() -> None:
    if parallel._is_initialized:
        return
    config = numba.config
    host_priority = config.THREADING_LAYER_PRIORITY
    # Numba's own order puts tbb first; another order or a layer was somebody's choice.
    ours = config.THREADING_LAYER == "default" and host_priority == ["tbb", "omp", "workqueue"]
    # The library reads its settings when it is loaded; afterwards the environment is as it was.
    ours_to_wait = ours and not any(name in os.environ for name in _WAIT_SETTINGS)
    if ours:
        _preload_tbb()
        config.THREADING_LAYER_PRIORITY = ORDER
    if ours_to_wait:
        os.environ["GOMP_SPINCOUNT"] = _LOOKS
    try:
        parallel._launch_threads()
    except ValueError as error:
        raise OpsError(f"starting the threading layer: {error}") from error
    finally:
        config.THREADING_LAYER_PRIORITY = host_priority
        if ours_to_wait:
            del os.environ["GOMP_SPINCOUNT"]
    if ours:
        _say_if_slow()


def _preload_tbb() -> None:
    """Load the library of the `tbb` package, whose folder is not on the loader's path."""
    if sys.platform != "linux":
        return
    with suppress(importlib.metadata.PackageNotFoundError, OSError):
        for file in importlib.metadata.files("tbb") or ():
            if file.name == "libtbb.so.12":
                ctypes.CDLL(str(file.locate()), mode=ctypes.RTLD_GLOBAL)


def _say_if_slow() -> None:
    global _said_slow  # noqa: PLW0603
    if numba.threading_layer() == "workqueue" and max_threads() > 1 and not _said_slow:
        _said_slow = True
        print(
            "kvarn: only Numba's workqueue threads are there, 50 times slower to start than "
            f"OpenMP's: {HOW_TO_FIX}",
            file=sys.stderr,
        )
