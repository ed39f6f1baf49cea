"""What a kernel works on: declared once, filled and read by name."""

import logging
from types import GenericAlias
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import kvarn
from kvarn.jit.errors import JitError
from kvarn.jit.kernel_cache import events
from kvarn.jit.launch import Arguments, Cell, record
from kvarn.jit.launch.arguments import F32_2D, I64_1D, Annotated, ArrayField, fields_of
from kvarn.jit.launch.define import CompiledKernel, Share, kernel


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


def test_each_launch_that_is_recorded_keeps_its_arguments():
    block, numbers, arrays = Arguments(Arrays), Inner(-0.5, 11), made_arrays()
    first, last = (arrays._replace(out=np.zeros_like(arrays.out)) for _ in range(2))
    place = block.fill(arrays)

    def work() -> None:
        for one, shift in ((first, 0), (last, 1000)):
            moved = one._replace(b=arrays.b - shift)  # which nobody else keeps
            describe(block.fill(moved), *numbers, 5, parallel=False)

    graph = record(work)
    assert block.address == place
    describe(block.address, *numbers, 5, parallel=False)
    for _ in range(2):
        graph.run()
    for one, shift in ((arrays, 0), (first, 0), (last, 1000)):
        np.testing.assert_array_equal(
            one.out, expected(one._replace(b=arrays.b - shift), numbers, 5)
        )
        one.out[:] = 0


def test_cells_are_read_when_the_graph_runs():
    block, arrays = Arguments(Arrays), made_arrays()
    memory = np.array([3, 5, 11], np.int64)

    def work() -> None:
        describe(block.fill(arrays), 0.5, Cell.at(memory, 2), Cell.at(memory, 1), parallel=False)

    graph = record(work)
    for values in ((3, 5, 11), (3, 6, 13), (3, -7, 1 << 40)):
        memory[:] = values
        graph.run()
        np.testing.assert_array_equal(
            arrays.out, expected(arrays, Inner(0.5, values[2]), values[1])
        )
    inside = arrays._replace(nested=arrays.nested._replace(numbers=Inner(1.0, Cell.at(memory))))
    with pytest.raises(JitError, match=r"Arrays\.nested\.numbers\.shift is a Cell"):
        record(lambda: block.fill(inside))


class Wrong(NamedTuple):
    text: str


class Wide(NamedTuple):
    a: int
    b: int


def test_what_no_record_can_hold_is_refused():
    def wide(share: Share, a: Wide, b: Wide, c: Wide, d: Wide, e: Wide, f: Wide, g: Wide, h: int):
        pass

    with pytest.raises(JitError, match="15 words, at most 14"):
        CompiledKernel(wide, ())

    def undeclared(x: int):
        pass

    with pytest.raises(JitError, match="not declared as a Share"):
        CompiledKernel(undeclared, ())
    with pytest.raises(JitError, match=r"Wrong\.text is declared as .*str"):
        Arguments(Wrong)


@pytest.mark.parametrize("inner", [np.float32, np.dtype[np.float32]])
def test_arrays_of_all_versions_of_numpy_are_read(inner):
    """The arguments of NDArray[float32], which is an alias from NumPy 2.5 on."""

    class Declared(NamedTuple):
        x: Annotated[GenericAlias(np.ndarray, (inner,)), 2]

    assert fields_of(Declared) == {"x": ArrayField(np.dtype(np.float32), 2)}


def test_a_kernel_has_one_file_and_is_told_by_its_name(places, tmp_path, monkeypatch, caplog):
    (folder,) = places(tmp_path)
    caplog.set_level(logging.INFO, "kvarn")
    names: list[str] = []
    monkeypatch.setattr(events, "_State", type("State", (events._State,), {}))
    kvarn.on_compile(lambda kernel, seconds: names.append(kernel))
    for _ in range(2):
        assert CompiledKernel(describe.kernel.py_func, ()).address
        (file,) = folder.iterdir()
        assert file.name.startswith("describe-")
    name = f"{describe.kernel.py_func.__module__}.describe"
    assert names == [name, name]  # its begin and its end
    begun, ended = (record.getMessage() for record in caplog.records)
    assert begun == f"compiling {name}" and ended.startswith(f"compiled {name} in ")


def test_references_to_a_kernels_arrays_are_not_counted():
    fresh = CompiledKernel(describe.kernel.py_func, ())
    for function in (fresh.kernel, fresh._entry):
        function._cache.disable()  # what comes from a file tells nothing of its code
    assert fresh._result is not None
    code = "".join(fresh._entry.inspect_llvm().values())
    assert "describe" in code
    assert "NRT_" not in code
