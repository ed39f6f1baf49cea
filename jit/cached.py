"""Compiles kernels once on a machine, not once in each process.

    @jit                      @jit(parallel=True)
    def _kernel(…): …         def _kernel(…): …

`jit` is Numba's njit with kvarn's options and kvarn's cache. Numba's cache notices changes only in
the kernel's own file, takes its folder from a setting that belongs to the host application, and
mixes up the files of two processes that compile at the same time.

Each specialisation (a kernel compiled for one signature) has a file `.kernel` (`kernel_cache`):

    a pickle of (names of the outer functions that the kernel calls,
                 Numba's reduced CompileResult: object code, types, environment)

A pickle can run any code when it is loaded, as can the object code in it. Both are safe because
nobody else can write the file (`system.trust`). The file's name has a hash of the function's code,
constants, closure and globals, its options and signature, and the sources of all of these
(`kernel_cache.sources`).

A part, which only other kernels call (`compiler`), has LLVM's IR in place of object code and
environment.
"""

import hashlib
import pickle
import types as python_types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import binding as llvm
from numba.core import serialize, sigutils
from numba.core.caching import _Cache
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys
from numba.extending import is_jitted

from . import kernel_cache, threads, variant
from .compiler import Compiler, Dispatcher, in_kernel, rebuild, reduced
from .errors import JitError
from .kernel_cache import folders, sources
from .kernel_cache.emit import external

OPTIONS: dict[str, Any] = {
    # Not full fastmath: results keep NaN and infinities.
    "fastmath": {"contract", "nsz"},
    "error_model": "numpy",
    "boundscheck": False,
}
_PLAIN = (int, float, complex, str, bytes, bool, type(None))

# Numba has to compile for the CPU that kvarn chose. For ARM it would not know of dot products.
if numba.config.CPU_NAME is None:
    numba.config.CPU_NAME = variant.CPU
if numba.config.CPU_FEATURES is None:
    numba.config.CPU_FEATURES = variant.LISTED
_, _cpu, _features = cpu_target.target_context.codegen().magic_tuple()
if (_cpu, _features) != (variant.CPU, variant.LISTED):
    raise JitError(
        f"compiling kernels: Numba compiles for {_cpu} ({_features}), kvarn chose kernels for "
        f"{variant.CPU} ({variant.LISTED}); set NUMBA_CPU_NAME and NUMBA_CPU_FEATURES in the "
        "environment, not in .numba_config.yaml"
    )


def jit(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorator: compile a function with kvarn's options and these, and keep the result on disk.

    Its closure and globals may hold numbers, strings, tuples, arrays, Numba types, other kernels
    and intrinsics. Anything that differs between processes (an open file, say) raises TypeError.
    """

    def wrap(python: Callable[..., Any]) -> Any:
        # Numba names a symbol after the function's qualified name and a counter of this process.
        # Two functions of one factory, made in different processes, would get the same symbol, and
        # a process that loads both would call one of them for both. A hash makes them differ.
        mark = hashlib.sha256(repr(_fingerprint(python, globals_too=False)).encode()).hexdigest()
        python.__qualname__ = f"{python.__qualname__}_{mark[:12]}"
        merged = {**OPTIONS, **options}
        dispatcher = Dispatcher(
            python, targetoptions={"nopython": True, **merged}, pipeline_class=Compiler
        )
        dispatcher._cache = KernelCache(python, merged)
        return dispatcher

    return wrap if function is None else wrap(function)


class KernelCache(_Cache):  # type: ignore[misc]
    """The files of one kernel, one for each specialisation. Numba calls these methods."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function, self._options = function, options
        self._enabled, self._base = True, ""
        self.name = f"{function.__module__}.{function.__name__}"

    @property
    def cache_path(self) -> str | None:
        folder = kernel_cache.place()
        return str(folder) if folder else None

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Nothing to do: other sources give another name."""

    def file_name(self, signature: Any, magic: tuple[Any, ...]) -> str:
        """Name of the file of one specialisation."""
        full = repr((self.base(), str(signature), magic, in_kernel()))
        return f"{self._function.__name__}-{hashlib.sha256(full.encode()).hexdigest()[:40]}.kernel"

    def base(self) -> str:
        """Hash of the function and its options, the same in every process."""
        if not self._base:
            self._base = self.name  # ends the recursion where kernels call each other
            options = _fingerprint(tuple(sorted(self._options.items())))
            source = sources.digest(self._function.__module__)
            parts = self.name, _fingerprint(self._function), options, source
            self._base = hashlib.sha256(repr(parts).encode()).hexdigest()
        return self._base

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        if self._options.get("parallel"):
            threads.start_numba()  # the kernel's first parallel loop needs them
        name = self.file_name(sig, target_context.codegen().magic_tuple())
        rebuild = partial(_rebuild, target_context)
        result = kernel_cache.find(name, rebuild) if self._enabled else None
        if result is None or not _accepts(result, sig):
            kernel_cache.Counts.compiled += 1
            return None
        return result

    def save_overload(self, sig: Any, data: Any) -> None:
        if any(not lifted.can_cache for lifted in data.lifted) or data.library.has_dynamic_globals:
            # A fault of the kernel, which tests look for.
            kernel_cache.Counts.uncachable += (self.name,)
            kernel_cache.tell_not_kept(
                self.name, "cannot keep a kernel, compiling it in every process"
            )
            return
        if self._enabled:
            name = self.file_name(sig, data.codegen.magic_tuple())
            payload = external(data.library._final_module), reduced(data)
            kernel_cache.keep(name, serialize.dumps(payload))


def _rebuild(target_context: Any, payload: bytes) -> Any:
    """The CompileResult of a file. Raises `kernel_cache.Damaged`."""
    try:
        external, reduced = pickle.loads(payload)
        _register(external, target_context)
        return rebuild(target_context, *reduced)
    except Exception as error:  # a pickle of anything else can raise anything
        raise kernel_cache.Damaged(f"a kernel's file: {error}") from error


def _accepts(result: Any, signature: Any) -> bool:
    """Whether a file's kernel accepts arguments of this process's types.

    A pickle holds a class of a script whole, and loads it as another class of the same name. A
    kernel for one of these does not accept the other.
    """
    return bool(tuple(result.signature.args) == sigutils.normalize_signature(signature)[0])


def _register(external: tuple[str, ...], target_context: Any) -> None:
    """Make these functions known to the linker, which ends the process if one is missing.

    Numba's `refresh` registers all of Numba's functions and takes 0.2 s; it is rarely needed.
    """
    rtsys.initialize(target_context)
    if any(llvm.address_of_symbol(name) is None for name in external):
        target_context.refresh()


def _fingerprint(value: Any, globals_too: bool = True, seen: tuple[Any, ...] = ()) -> Any:
    """A value whose repr is the same in every process, and differs where the kernel would differ.

    It includes the digest of the module of the value, its class or its function: a module that gets
    a function as an argument does not import it.

    globals_too: whether the values of a function's globals count, as well as their names.
    """
    if isinstance(value, _PLAIN):
        return value
    if any(value is earlier for earlier in seen):
        return "again"
    is_module = isinstance(value, python_types.ModuleType)
    module = value.__name__ if is_module else getattr(value, "__module__", "")
    return _parts(value, globals_too, (*seen, value)), sources.digest(module, "")


def _parts(value: Any, globals_too: bool, seen: tuple[Any, ...]) -> Any:
    if isinstance(value, tuple | list | frozenset | set):
        parts = [repr(_fingerprint(v, globals_too, seen)) for v in value]
        return type(value).__name__, parts if isinstance(value, tuple | list) else sorted(parts)
    if isinstance(value, numba.types.Type):
        return "type", str(value)
    if is_jitted(value):
        if globals_too and isinstance(value._cache, KernelCache):
            return "kernel", value._cache.base()
        return "kernel", _fingerprint(value.py_func, globals_too, seen)
    if isinstance(value, numba.extending._Intrinsic):
        return "intrinsic", _fingerprint(value._defn, False, seen)
    if isinstance(value, python_types.CodeType):
        constants = [_fingerprint(c, globals_too, seen) for c in value.co_consts]
        return value.co_code, constants, value.co_names
    if isinstance(value, python_types.FunctionType):
        return _function_fingerprint(value, globals_too, seen)
    if isinstance(value, python_types.ModuleType | type | python_types.BuiltinFunctionType):
        return type(value).__name__, getattr(value, "__qualname__", value.__name__)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    text = repr(value)
    if " at 0x" in text:
        raise TypeError(f"a kernel uses {text}, which is not the same in the next process")
    return type(value).__qualname__, text


def _function_fingerprint(
    function: python_types.FunctionType, globals_too: bool, seen: tuple[Any, ...]
) -> Any:
    cells = [c.cell_contents for c in function.__closure__ or ()]
    closure = [_fingerprint(c, globals_too, seen) for c in cells]
    code = function.__code__
    used = [
        (name, _fingerprint(function.__globals__[name], globals_too, seen))
        for name in code.co_names
        if globals_too and name in function.__globals__
    ]
    origin = function.__module__, code.co_qualname, _outside_source(function)
    return origin, _fingerprint(code, False, seen), closure, used


def _outside_source(function: Callable[..., Any]) -> str:
    """Hash of a function's source file outside jit/ and ops/, which `sources` does not know."""
    path = Path(function.__code__.co_filename)
    if any(path.is_relative_to(floor) for floor in folders.FLOORS) or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()
