"""Kernels as their callers see them: called by address, now or recorded. Imports no Numba.

    @lazy_kernel
    def _add() -> DefinedKernel:
        from .kernels import add
        return add

    _add(x.ctypes.data, y.ctypes.data, 0.5)

What a process needs of a kernel that was compiled before is its machine code. Numba, which every
module that defines kernels imports, takes longer to import than a model to open. So a caller says
where a kernel is defined, and imports that only where it has to be compiled.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from struct import Struct
from typing import NamedTuple, ParamSpec

from .. import kernel_cache
from ..kernel_cache import machine_code
from . import graph

P = ParamSpec("P")


class Kernel(ABC):
    """A kernel, to be called with its arguments: it runs now, or is recorded into a graph."""

    @property
    @abstractmethod
    def address(self) -> int:
        """Where its code is; compiled, or loaded from the cache, when first asked for."""

    @property
    @abstractmethod
    def kinds(self) -> str:
        """A letter for each word of its arguments: "i" an integer or address, "f" a float64."""

    @property
    @abstractmethod
    def traits(self) -> tuple[int, ...]:
        """What its callers have to know of it, see `define.kernel`."""

    @cached_property
    def words(self) -> Struct:
        """How its address, the phase and its arguments stand in a record."""
        return Struct("qq" + self.kinds.replace("i", "q").replace("f", "d"))

    def __call__(self, *arguments: float, parallel: bool = True, group: int = 0) -> None:
        """Run in all threads, or in the calling one.

        Launches of one group (a number but 0) that follow each other read the same input and write
        to different places: they may run side by side.
        """
        graph.launch(self, arguments, parallel, group)


class DefinedKernel(Kernel):
    """One whose definition is at hand, to be compiled."""

    @abstractmethod
    def code(self, symbol: str) -> machine_code.Code | None:
        """Its machine code under a name of its own; None where it cannot do without Numba."""


class _Linked(NamedTuple):
    address: int
    kinds: str
    traits: tuple[int, ...]


class LazyKernel(Kernel):
    """One that is defined elsewhere: `lazy_kernel` and `lazy_kernels` make them.

    The file of its code is named by who asks for it and the parameters alone, for the key of the
    folder has the sources of jit/ and ops/: a module elsewhere calls its kernels as they are made.
    """

    def __init__(self, find: Callable[..., DefinedKernel], parameters: tuple[object, ...]) -> None:
        self._find, self._parameters = find, parameters
        place = repr((find.__module__, find.__qualname__, parameters))
        self._hash = hashlib.sha256(place.encode()).hexdigest()[:40]

    @cached_property
    def _linked(self) -> _Linked:
        name = f"{self._find.__name__.strip('_')}-{self._hash}.code"
        if found := self._kept(name):
            return found
        with kernel_cache.compiling():
            # Whoever listens may have compiled it meanwhile.
            kernel_cache.missing(f"{self._find.__module__}.{self._find.__name__}")
            return self._kept(name) or self._compiled(name)

    def _kept(self, name: str) -> _Linked | None:
        if (found := kernel_cache.find(name, machine_code.load)) is None:
            return None
        address, known = found
        return _Linked(address, known.kinds, known.traits)

    def _compiled(self, name: str) -> _Linked:
        defined = self._find(*self._parameters)
        made = defined.code(f"kvarn_kernel_{self._hash}")
        if made is None:
            return _Linked(defined.address, defined.kinds, defined.traits)
        kernel_cache.keep(name, machine_code.to_bytes(made))
        return _Linked(machine_code.link(made) or defined.address, defined.kinds, defined.traits)

    @property
    def address(self) -> int:
        return self._linked.address

    @property
    def kinds(self) -> str:
        return self._linked.kinds

    @property
    def traits(self) -> tuple[int, ...]:
        return self._linked.traits


def lazy_kernel(find: Callable[[], DefinedKernel]) -> Kernel:
    """Decorator of a function that imports a kernel and returns it: the kernel, for its callers."""
    return LazyKernel(find, ())


def lazy_kernels(find: Callable[P, DefinedKernel]) -> Callable[P, Kernel]:
    """Decorator of a function that makes the kernel of a family for some parameters.

    Their repr tells the kernels apart in every process. The function called twice with the same
    parameters gives the same kernel.
    """

    @cache
    def of(*parameters: object) -> Kernel:
        return LazyKernel(find, parameters)

    return update_wrapper(of, find)  # type: ignore[return-value,arg-type]
