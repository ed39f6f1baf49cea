"""The ids of tokens as a growing array: of ten million, 40 MB, where numbers of Python take 400."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Self, SupportsIndex, overload


class TokenIds(array):  # type: ignore[type-arg]
    """Ids of tokens, uint32, which read like a list of numbers: slices and sums are lists, and it
    equals a list of the same ids. NumPy reads it without a copy. OverflowError for what is no
    uint32."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __new__(cls, ids: Iterable[int] = ()) -> Self:
        """ids: numbers, or bytes of uint32 as they are in memory."""
        made: Self = super().__new__(cls, "I", ids)  # type: ignore[assignment]
        return made

    def copy(self) -> Self:
        """Another array of the same ids."""
        return type(self)(self)

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> Self:
        return self.copy()

    def extend(self, ids: Iterable[int], /) -> None:
        """Append ids, all of them or, where one is no uint32, none."""
        numbers = iter(ids) if isinstance(ids, bytes | bytearray) else ids
        super().extend(array("I", numbers))

    def first(self, n: int) -> Self:
        """A copy of the first n."""
        return type(self)(super().__getitem__(slice(n)))

    @overload  # type: ignore[override]
    def __getitem__(self, at: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, at: slice, /) -> list[int]: ...
    def __getitem__(self, at: Any, /) -> Any:
        part = super().__getitem__(at)
        return part.tolist() if isinstance(at, slice) else part

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list | tuple):
            return self.tolist() == [*other]
        return isinstance(other, array) and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __iadd__(self, other: Iterable[int]) -> Self:  # type: ignore[misc,override]
        self.extend(other)
        return self

    def __add__(self, other: Iterable[int]) -> list[int]:  # type: ignore[override]
        return [*self, *other]

    def __radd__(self, other: Iterable[int]) -> list[int]:
        return [*other, *self]

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return type(self), (self.tobytes(),)

    def __repr__(self) -> str:
        return repr(self.tolist())
