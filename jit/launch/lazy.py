"""Kernels as their callers see them. Imports no Numba.

    @lazy_kernel
    def _add() -> DefinedKernel:
        from .kernels import add
        return add

    _add(x.ctypes.data, y.ctypes.data, 0.5)

A module that defines kernels imports Numba, which takes longer than opening a model. A kernel that
is in the cache does not need it. So a caller names a kernel in a function, and that function runs
only where the kernel has to be compiled.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from typing import NamedTuple, ParamSpec

from .. import kernel_cache
from ..kernel_cache import machine_code, sources
from .graph import Kernel

P = ParamSpec("P")


class DefinedKernel(Kernel):
    """A kernel that can be compiled here, as its definition has been imported."""

    @abstractmethod
    def code(self, symbol: str) -> machine_code.Code:
        """Its machine code, as a function `symbol`. Raises `Unlinkable` if it needs Numba."""


class _Linked(NamedTuple):
    address: int
    kinds: str
    traits: tuple[int, ...]


class LazyKernel(Kernel):
    """A kernel that `find(*parameters)` imports: see `lazy_kernel` and `lazy_kernels`.

    The name of its file depends on `find`, the parameters and the sources of what `find` imports,
    if these are in jit/ and ops/. Kernels that are defined elsewhere must not be lazy.
    """

    def __init__(self, find: Callable[..., DefinedKernel], parameters: tuple[object, ...]) -> None:
        self._find, self._parameters = find, parameters

    @cached_property
    def _hash(self) -> str:
        place = self._find.__module__, self._find.__qualname__, self._parameters
        made_of = [sources.digest(":".join(place[:2]))]
        made_of += [sources.digest(type(one).__module__, "") for one in self._parameters]
        return hashlib.sha256(repr((place, made_of)).encode()).hexdigest()[:40]

    @cached_property
    def _linked(self) -> _Linked:
        name = f"{self._find.__name__.strip('_')}-{self._hash}.code"
        if found := self._kept(name):
            return found
        with kernel_cache.compiling(self._title):
            # Whoever listens may have compiled it meanwhile.
            return self._kept(name) or self._compiled(name)

    @property
    def _title(self) -> str:
        return f"{self._find.__module__}.{self._find.__name__}"

    def _kept(self, name: str) -> _Linked | None:
        if (found := kernel_cache.find(name, machine_code.load)) is None:
            return None
        address, known = found
        return _Linked(address, known.kinds, known.traits)

    def _compiled(self, name: str) -> _Linked:
        defined = self._find(*self._parameters)
        try:
            made = defined.code(f"kvarn_kernel_{self._hash}")
            address = machine_code.link(made)
        except kernel_cache.Unlinkable as error:
            kernel_cache.tell_not_kept(
                f"{self._title} {error}", "cannot keep a kernel, importing Numba in every process"
            )
            address = defined.address
        else:
            kernel_cache.keep(name, machine_code.to_bytes(made))
        return _Linked(address, defined.kinds, defined.traits)

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
    """Decorator: make a kernel of a function that imports and returns one."""
    return LazyKernel(find, ())


def lazy_kernels(find: Callable[P, DefinedKernel]) -> Callable[P, Kernel]:
    """Decorator: `lazy_kernel` for a family: `find(*parameters)` imports one of its kernels.

    The repr of the parameters must be the same in every process. Called twice with the same
    parameters, the function gives the same kernel.
    """

    @cache
    def of(*parameters: object) -> Kernel:
        return LazyKernel(find, parameters)

    return update_wrapper(of, find)  # type: ignore[return-value,arg-type]
