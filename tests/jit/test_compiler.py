"""A kernel stays what it is when others call it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numba import types
from numba.core.codegen import JITCodeLibrary

from kvarn.jit.cached import jit
from kvarn.jit.compiler import Part, compile_part
from kvarn.jit.simd import fma, load_f32, load_one_f32, set_f32, store


@jit
def add_rows(rows, weights, lo, hi, out, n):
    for i in range(n):
        place = out + 64 * i
        x = load_f32(place, 0)
        for t in range(lo, hi):
            w = set_f32(load_one_f32(weights, 4 * t))
            x = fma(load_f32(rows, 512 * t + 64 * i), w, x)
        store(place, 0, x)


@jit
def add_two(rows, weights, lo, hi, out):
    # A number of vectors that is known only here: the caller unrolls the loop over them, and
    # the address of the first is `out` and nothing else.
    add_rows(rows, weights, lo, hi, out, len((lo, hi)))


def test_a_caller_unrolls_a_loop_over_addresses():
    rng = np.random.default_rng(0)
    rows, weights = rng.random((16, 128), np.float32), rng.random(16, np.float32)
    for lo, hi in ((0, 1), (0, 2), (3, 16), (5, 5)):
        out = np.ones(128, np.float32)
        add_two(rows.ctypes.data, weights.ctypes.data, lo, hi, out.ctypes.data)
        want = np.ones(128, np.float32)
        want[:32] += weights[lo:hi] @ rows[lo:hi, :32]
        np.testing.assert_allclose(out, want, rtol=1e-5)


@jit
def add_one(x):
    return x + 1


@jit
def double_next(x):
    return 2 * add_one(x)


def test_what_only_kernels_call_has_no_machine_code(
    places: Callable[..., list[Path]], tmp_path: Path
) -> None:
    """Where nothing is compiled yet: a kernel that is loaded from a file has its parts in it."""
    places(tmp_path)
    assert double_next(4) == 10
    (part,) = add_one.overloads.values()
    assert isinstance(part.entry_point, Part)
    assert part.fndesc.llvm_cpython_wrapper_name not in part.library.get_llvm_str()
    assert add_one(4) == 5  # compiled again, for Python
    (kernel,) = add_one.overloads.values()
    assert not isinstance(kernel.entry_point, Part)
    assert double_next(4.5) == 11  # a part again, for other arguments


@jit
def add_twice(x):
    return add_one(add_one(x))


@jit
def double_both(x):
    return double_next(add_twice(x))


def test_parts_are_optimised_in_their_kernel_alone(
    places: Callable[..., list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places(tmp_path)
    optimise, optimised = JITCodeLibrary._optimize_final_module, []

    def noted(library: JITCodeLibrary) -> None:
        optimised.append(library)
        optimise(library)

    monkeypatch.setattr(JITCodeLibrary, "_optimize_final_module", noted)
    library = compile_part(double_both, (types.uint8,)).library
    assert optimised == [library]
    text = str(library._get_module_for_linking())
    assert text.count("define ") == 1 and "call" not in text  # all parts are inlined
    assert double_both(np.uint8(4)) == 14
