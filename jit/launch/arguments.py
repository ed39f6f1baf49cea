"""The arguments of kernels: declared once, filled and read by name. Imports no Numba.

    class Sketches(NamedTuple):             # arrays, numbers, other such tuples
        segments: I64_1D
        bits: I64_1D
        layout: StoredLayout

    arguments = Arguments(Sketches)                                             # Python
    sketch(arguments.fill(Sketches(segments=s, bits=b, layout=stored)), n_heads)

    @kernel                                                                     # the kernel
    def sketch(share: Share, keys: Sketches, n_heads: int): … keys.bits[0] …

An `Arguments` is a block of memory that a kernel gets by one address. It holds 64-bit words, field
by field: the address and the shape of an array, a number, the fields of a tuple.
"""

from __future__ import annotations

from functools import cache
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    TypeGuard,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from ..errors import JitError
from .graph import Cell, keep, recording

F32_1D = Annotated[NDArray[np.float32], 1]
F32_2D = Annotated[NDArray[np.float32], 2]
F32_3D = Annotated[NDArray[np.float32], 3]
F32_4D = Annotated[NDArray[np.float32], 4]
F64_2D = Annotated[NDArray[np.float64], 2]
I8_4D = Annotated[NDArray[np.int8], 4]
I32_2D = Annotated[NDArray[np.int32], 2]
I32_3D = Annotated[NDArray[np.int32], 3]
I64_1D = Annotated[NDArray[np.int64], 1]
I64_2D = Annotated[NDArray[np.int64], 2]
I64_3D = Annotated[NDArray[np.int64], 3]
I64_4D = Annotated[NDArray[np.int64], 4]
U8_2D = Annotated[NDArray[np.uint8], 2]
U8_3D = Annotated[NDArray[np.uint8], 3]
U8_4D = Annotated[NDArray[np.uint8], 4]
U8_5D = Annotated[NDArray[np.uint8], 5]
U16_2D = Annotated[NDArray[np.uint16], 2]
U32_1D = Annotated[NDArray[np.uint32], 1]
U32_2D = Annotated[NDArray[np.uint32], 2]
U32_3D = Annotated[NDArray[np.uint32], 3]
U64_1D = Annotated[NDArray[np.uint64], 1]
U64_2D = Annotated[NDArray[np.uint64], 2]
U64_3D = Annotated[NDArray[np.uint64], 3]
U64_4D = Annotated[NDArray[np.uint64], 4]

T = TypeVar("T", bound=tuple[Any, ...])


class ArrayField(NamedTuple):
    """A declared array, which has to be C-contiguous."""

    dtype: np.dtype[Any]
    ndim: int


Field = type[int] | type[float] | ArrayField | type[tuple[Any, ...]]


@cache
def fields_of(declared: type[tuple[Any, ...]]) -> dict[str, Field]:
    """The fields of a NamedTuple that declares arguments of a kernel.

    Raises JitError for a field that is not an int, a float, an array type of this module or another
    such tuple.
    """
    hints = get_type_hints(declared, include_extras=True)
    return {name: _field(f"{declared.__name__}.{name}", hint) for name, hint in hints.items()}


def _field(name: str, hint: Any) -> Field:
    if hint in (int, float) or is_declared(hint):
        plain: Field = hint
        return plain
    if get_origin(hint) is Annotated:
        array, ndim = get_args(hint)
        # NDArray[T] is ndarray[…, dtype[T]]; from NumPy 2.5 on it is an alias, with T itself.
        *_, last = get_args(array)
        (scalar,) = get_args(last) or (last,)
        return ArrayField(np.dtype(scalar), ndim)
    raise JitError(
        f"{name} is declared as {hint}: expected int, float, an array such as F32_2D, a NamedTuple"
    )


def is_declared(hint: Any) -> TypeGuard[type[tuple[Any, ...]]]:
    """Whether a type is a NamedTuple."""
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def has_arrays(declared: type[tuple[Any, ...]]) -> bool:
    """Whether any field is an array: kernels then get the address of the tuple's `Arguments`."""
    inner = fields_of(declared).values()
    return any(isinstance(f, ArrayField) or (is_declared(f) and has_arrays(f)) for f in inner)


def n_words(field: Field) -> int:
    """The number of 64-bit words of a field in a block."""
    if isinstance(field, ArrayField):
        return 1 + field.ndim
    if is_declared(field):
        return sum(n_words(inner) for inner in fields_of(field).values())
    return 1


class _Place(NamedTuple):
    """A field of a block: its full name, its words and, if it is a tuple, its own fields."""

    name: str
    field: Field
    words: slice
    inner: tuple[_Place, ...]


def _places(name: str, declared: type[tuple[Any, ...]], first: int) -> tuple[_Place, ...]:
    """The places of a tuple's fields, from word number `first` on."""
    places = []
    for field_name, field in fields_of(declared).items():
        full, stop = f"{name}.{field_name}", first + n_words(field)
        inner = _places(full, field, first) if is_declared(field) else ()
        places.append(_Place(full, field, slice(first, stop), inner))
        first = stop
    return tuple(places)


class Arguments(Generic[T]):
    """A block of memory with a kernel's arguments; keeps their arrays alive."""

    def __init__(self, declared: type[T]) -> None:
        self._places = _places(declared.__name__, declared, 0)
        self._words = np.zeros(n_words(declared), np.int64)
        self._values: T | None = None
        self.address = int(self._words.ctypes.data)

    @classmethod
    def fixed(cls, values: T) -> Arguments[T]:
        """A block whose values never change, so that launches with it may be recorded."""
        block = cls(type(values))
        block._set(values)
        return block

    def fill(self, values: T) -> int:
        """Replace the values of the block. Returns its address.

        While a graph is recorded, its launches get a block of their own. Raises JitError for an
        array that is not as declared, and for a `Cell`, which has to be an argument itself.
        """
        if recording():
            block = Arguments.fixed(values)
            keep(block)
            return block.address
        self._set(values)
        return self.address

    def _set(self, values: T) -> None:
        # Most values are those of the previous layer. Checking all of them takes 0.5 ms per token.
        changed = _changed(self._places, values, self._values)
        for place, value in changed:
            if isinstance(place.field, ArrayField):
                _check(place.name, value, place.field)
            elif isinstance(value, Cell):
                raise JitError(f"{place.name} is a Cell: expected one as an argument of the launch")
        for place, value in changed:
            self._words[place.words] = _words(value, place.field)
        self._values = values


def _changed(
    places: tuple[_Place, ...], values: tuple[Any, ...], before: tuple[Any, ...] | None
) -> list[tuple[_Place, Any]]:
    """The arrays and numbers that are not in the block yet."""
    changed = []
    for place, value, old in zip(places, values, before or (None,) * len(places), strict=True):
        if value is not old:
            if place.inner:
                changed += _changed(place.inner, value, old)
            else:
                changed.append((place, value))
    return changed


def _check(name: str, x: NDArray[Any], field: ArrayField) -> None:
    if x.dtype != field.dtype or x.ndim != field.ndim or not x.flags.c_contiguous:
        raise JitError(
            f"{name} is {x.dtype} {x.shape}, expected {field.dtype} of {field.ndim} dimensions, "
            "contiguous"
        )


def _words(value: Any, field: Field) -> int | tuple[int, ...]:
    if isinstance(field, ArrayField):
        return value.ctypes.data, *value.shape
    return int(np.float64(value).view(np.int64)) if field is float else int(value)
