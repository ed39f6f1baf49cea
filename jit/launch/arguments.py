"""What a kernel works on, declared once, by name. Imports no Numba.

    class Sketches(NamedTuple):             # arrays, numbers, other such tuples
        segments: I64_1D
        bits: I64_1D
        layout: StoredLayout

    arguments = Arguments(Sketches)                                             # Python
    sketch(arguments.fill(Sketches(segments=s, bits=b, layout=known)), n_heads)

    @kernel                                                                     # the kernel
    def sketch(share: Share, keys: Sketches, n_heads: int): … keys.bits[0] …

An `Arguments` is a block of memory that a kernel finds by one address. For each field in turn, as
64-bit words: of an array its address and its dimensions, of a number itself, of a tuple its fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import accumulate, pairwise
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
from .graph import recording

F32_1D = Annotated[NDArray[np.float32], 1]
F32_2D = Annotated[NDArray[np.float32], 2]
F32_3D = Annotated[NDArray[np.float32], 3]
F32_4D = Annotated[NDArray[np.float32], 4]
I8_2D = Annotated[NDArray[np.int8], 2]
I8_3D = Annotated[NDArray[np.int8], 3]
I8_4D = Annotated[NDArray[np.int8], 4]
I64_1D = Annotated[NDArray[np.int64], 1]
I64_2D = Annotated[NDArray[np.int64], 2]
I64_3D = Annotated[NDArray[np.int64], 3]
U8_1D = Annotated[NDArray[np.uint8], 1]
U8_2D = Annotated[NDArray[np.uint8], 2]
U8_3D = Annotated[NDArray[np.uint8], 3]
U8_4D = Annotated[NDArray[np.uint8], 4]
U16_2D = Annotated[NDArray[np.uint16], 2]
U32_1D = Annotated[NDArray[np.uint32], 1]
U32_2D = Annotated[NDArray[np.uint32], 2]
U64_1D = Annotated[NDArray[np.uint64], 1]
U64_2D = Annotated[NDArray[np.uint64], 2]
U64_3D = Annotated[NDArray[np.uint64], 3]
U64_4D = Annotated[NDArray[np.uint64], 4]

T = TypeVar("T", bound=tuple[Any, ...])


class ArrayField(NamedTuple):
    """An array of a declaration: C-contiguous."""

    dtype: np.dtype[Any]
    ndim: int


Field = type[int] | type[float] | ArrayField | type[tuple[Any, ...]]


@cache
def fields_of(declared: type[tuple[Any, ...]]) -> dict[str, Field]:
    """The fields of a NamedTuple that declares what a kernel works on.

    Raises JitError for a field that is neither int, float, an array of known dimensions, nor
    another such tuple.
    """
    found = get_type_hints(declared, include_extras=True)
    return {name: _field(f"{declared.__name__}.{name}", hint) for name, hint in found.items()}


def _field(name: str, hint: Any) -> Field:
    if hint in (int, float) or is_declared(hint):
        known: Field = hint
        return known
    if get_origin(hint) is Annotated:
        array, ndim = get_args(hint)
        (scalar,) = get_args(get_args(array)[1])
        return ArrayField(np.dtype(scalar), ndim)
    raise JitError(f"{name} is declared as {hint}: no kernel can take that")


def is_declared(hint: Any) -> TypeGuard[type[tuple[Any, ...]]]:
    """Whether a type is a NamedTuple."""
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def has_arrays(declared: type[tuple[Any, ...]]) -> bool:
    """Whether any field is an array, so that the tuple goes by the address of its `Arguments`."""
    inner = fields_of(declared).values()
    return any(isinstance(f, ArrayField) or (is_declared(f) and has_arrays(f)) for f in inner)


def n_words(field: Field) -> int:
    """64-bit words of a field in a block of arguments."""
    if isinstance(field, ArrayField):
        return 1 + field.ndim
    if is_declared(field):
        return sum(n_words(inner) for inner in fields_of(field).values())
    return 1


class Arguments(Generic[T]):
    """Arguments of a kernel, found by one address; arrays live as long as the block holds them."""

    def __init__(self, declared: type[T]) -> None:
        fields = fields_of(declared)
        ends = list(accumulate(map(n_words, fields.values()), initial=0))
        self._name, self._fields = declared.__name__, tuple(fields.items())
        self._places = [slice(*place) for place in pairwise(ends)]
        self._words = np.zeros(ends[-1], np.int64)
        self._held: T | None = None
        self.address = int(self._words.ctypes.data)

    @classmethod
    def fixed(cls, values: T) -> Arguments[T]:
        """A block that holds these for good: launches with its address may be recorded."""
        block = cls(type(values))
        block._hold(values)
        return block

    def fill(self, values: T) -> int:
        """Hold these from now on; gives the block's address.

        Raises JitError for an array that is not what is declared, and while a graph is recorded,
        whose kernels would all find the last ones.
        """
        if recording():
            raise JitError(f"recording a launch with {self._name}, which the next one replaces")
        self._hold(values)
        return self.address

    def _hold(self, values: T) -> None:
        # From layer to layer most stay: looking at each would cost a token of many layers 0.5 ms.
        held = self._held or (None,) * len(values)
        others = [i for i, x in enumerate(values) if x is not held[i]]
        for i in others:
            name, field = self._fields[i]
            if isinstance(field, ArrayField):
                _check(f"{self._name}.{name}", values[i], field)
        for i in others:
            self._words[self._places[i]] = [*_words(values[i], self._fields[i][1])]
        self._held = values


def _check(name: str, x: NDArray[Any], field: ArrayField) -> None:
    if x.dtype != field.dtype or x.ndim != field.ndim or not x.flags.c_contiguous:
        raise JitError(
            f"{name} is {x.dtype} {x.shape}, expected {field.dtype} of {field.ndim} dimensions, "
            "contiguous"
        )


def _words(value: Any, field: Field) -> Iterator[int]:
    if isinstance(field, ArrayField):
        yield value.ctypes.data
        yield from value.shape
    elif is_declared(field):
        for inner, of in zip(value, fields_of(field).values(), strict=True):
            yield from _words(inner, of)
    elif field is float:
        yield int(np.float64(value).view(np.int64))
    else:
        yield value
