"""Kernels as their callers use them, without Numba. Imports no Numba.

    @lazy_kernel
    def _add() -> DefinedKernel:
        from .kernels import add
        return add

    _add(x.ctypes.data, y.ctypes.data, 0.5)

A module that defines kernels imports Numba, which takes longer than opening a model. A kernel in
the cache does not need it. So a caller imports the kernel in a function, which runs only where the
kernel has to be compiled.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property, update_wrapper
from typing import NamedTuple, ParamSpec

from ...system.garbage import no_collection
from .. import kernel_cache
from ..kernel_cache import emit, machine_code, sources
from . import launcher
from .graph import Kernel

P = ParamSpec("P")


class DefinedKernel(Kernel):
    """A kernel whose definition has been imported, so that it can be compiled."""

    @abstractmethod
    def code(self, symbol: str) -> emit.Code:
        """Its machine code, as a function `symbol`. Raises `Unlinkable` if it needs Numba."""


class _Linked(NamedTuple):
    address: int
    kinds: str
    traits: tuple[int, ...]


class LazyKernel(Kernel):
    """A kernel that `load(*parameters)` imports, see `lazy_kernel` and `lazy_kernels`.

    The name of its file depends on `load`, the parameters and the sources that `load` imports from
    jit/ and ops/. Kernels of other rooms must not be lazy. Other processes get it by its name.
    """

    def __init__(
        self,
        load: Callable[..., DefinedKernel],
        parameters: tuple[object, ...] = (),
        family: Callable[..., Kernel] | None = None,
    ) -> None:
        self._load, self._parameters, self._family = load, parameters, family
        self.__module__ = load.__module__

    @cached_property
    def _hash(self) -> str:
        origin = self._load.__module__, self._load.__qualname__, self._parameters
        digests = [sources.digest(":".join(origin[:2]))]
        digests += [sources.digest(type(value).__module__, "") for value in self._parameters]
        return hashlib.sha256(repr((origin, digests)).encode()).hexdigest()[:40]

    def __reduce__(self) -> str | tuple[Callable[..., Kernel], tuple[object, ...]]:
        return (self._family, self._parameters) if self._family else self._load.__name__

    @cached_property
    def _name(self) -> str:
        return f"{self._load.__name__.strip('_')}-{self._hash}.code"

    @cached_property
    def _linked(self) -> _Linked:
        if linked := self._from_file(self._name):
            return linked
        if _collect is not None:
            _collect(self)
            defined = self._load(*self._parameters)
            return _Linked(0, defined.kinds, defined.traits)
        return self._compile_once()

    def compile(self) -> None:
        """Compile it for other processes, unless its file exists."""
        if not kernel_cache.has([self._name]):
            self._compile_once()

    @property
    def _title(self) -> str:
        return f"{self._load.__module__}.{self._load.__name__}"

    def _from_file(self, name: str) -> _Linked | None:
        if (loaded := kernel_cache.find(name, machine_code.load)) is None:
            return None
        address, code = loaded
        return _Linked(address, code.kinds, code.traits)

    def _compile_once(self) -> _Linked:
        with kernel_cache.compiling(self._title), kernel_cache.claim(self._name):
            # A listener or another process may have compiled it meanwhile.
            return self._from_file(self._name) or self._compile(self._name)

    @no_collection()  # Numba makes so many objects that this takes an eighth off its time
    def _compile(self, name: str) -> _Linked:
        defined = self._load(*self._parameters)
        try:
            code = defined.code(f"kvarn_kernel_{self._hash}")
            address = machine_code.link(code)
        except kernel_cache.Unlinkable as error:
            kernel_cache.tell_not_kept(
                f"{self._title} {error}", "cannot keep a kernel, importing Numba in every process"
            )
            address = defined.address
        else:
            kernel_cache.keep(name, machine_code.to_bytes(code))
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


_collect: Callable[[LazyKernel], None] | None = None


@contextmanager
def collecting(collect: Callable[[LazyKernel], None]) -> Iterator[None]:
    """In the block, call `collect(kernel)` instead of compiling a kernel. From now on, launches of
    this process run nothing, and their results have no meaning."""
    global _collect  # noqa: PLW0603
    launcher.only_compile()
    _collect = collect
    try:
        yield
    finally:
        _collect = None


def lazy_kernel(load: Callable[[], DefinedKernel]) -> Kernel:
    """Decorator: make a kernel of a function that imports and returns one."""
    return LazyKernel(load)


def lazy_kernels(load: Callable[P, DefinedKernel]) -> Callable[P, Kernel]:
    """Decorator: `lazy_kernel` for a family, of which `load(*parameters)` imports one kernel.

    The repr of the parameters must be the same in every process. The same parameters give the same
    kernel.
    """

    def kernel(*parameters: object) -> Kernel:
        return LazyKernel(load, parameters, family)

    family = update_wrapper(cache(kernel), load)  # type: ignore[arg-type]
    return family  # type: ignore[return-value]
