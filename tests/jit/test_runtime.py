"""Modules that only keep, load and call machine code: an edit there compiles no kernel again.

`sources.RUNTIME` lists them. What is true of the list is shown in three ways: every module of jit/
is on one side, with a reason; a runtime module has nothing that Numba compiles; and of the border
between the two sides, each name is known.
"""

import ast

import pytest

from kvarn.jit.kernel_cache import folders, sources

# The modules that make kernels: an edit discards all kernels that import them.
MAKING = {
    "cached": "Numba's options; the layout of a `.kernel`",
    "compiler": "Numba's pipeline and how modules are linked",
    "kernel_cache.emit": "LLVM's passes and options, the function around a kernel",
    "launch": "hands on names of `arguments`",
    "launch.arguments": "the order and the words of a kernel's arguments",
    "launch.atomics": "intrinsics",
    "launch.by_numba": "a kernel itself: the launcher of Numba's threads",
    "launch.clock": "a kernel itself",
    "launch.define": "the function around a kernel, which reads its record",
    "launch.program": "a kernel itself: the launcher of GNU's threads",
    "launch.record": "offsets in a record",
    "launch.views": "types and intrinsics",
    "simd": "hands on VARIANT, FEATURES and the intrinsics",
    "simd.dot": "intrinsics",
    "simd.lanes": "intrinsics",
    "simd.math": "intrinsics",
    "simd.memory": "intrinsics",
    "simd.types": "intrinsics",
    "variant": "which features kernels look for",
}
RUNTIME = {
    "arena": "memory, aligned in the process that runs",
    "bundled": "which CPU to compile for, and that is in the folder's name",
    "errors": "a class",
    "forks": "refuses to run",
    "host": "what LLVM calls this CPU, and that is in the folder's name",
    "kernel_cache": "hands on names of runtime modules",
    "kernel_cache.elf": "links what is compiled",
    "kernel_cache.events": "tells of compilations",
    "kernel_cache.files": "reads and writes files, each with a checksum",
    "kernel_cache.folders": "where files are; versions and CPU are in the name",
    "kernel_cache.machine_code": "a file's layout, with a version of its own, and linking",
    "kernel_cache.relocations": "links what is compiled",
    "kernel_cache.sources": "the names of files",
    "launch.graph": "fills records",
    "launch.launcher": "calls what `program` and `by_numba` are compiled to",
    "launch.lazy": "finds a kernel's file",
    "libraries": "addresses of functions, at linking",
    "machine": "what this CPU has, and that is in the folder's name",
    "roots": "where files are, and versions, which are in the folder's name",
    "threads": "how many threads run",
}

# What the sources of kernels may take from runtime modules, and why no code changes with it.
BORDER = {
    "arena:aligned": "wrappers allocate with it",
    "bundled:": "which CPU to compile for, and that is in the folder's name",
    "errors:JitError": "raised before anything is compiled",
    "host:": "what LLVM calls this CPU, and that is in the folder's name",
    "kernel_cache:": "files by name",
    "kernel_cache.files:Unlinkable": "raised instead of code",
    "kernel_cache.folders:": "which sources `sources` knows",
    "kernel_cache.machine_code:": "links what `clock` compiles",
    "kernel_cache.sources:": "the name of a file",
    "launch.graph:Cell": "refused as a value of `Arguments`",
    "launch.graph:keep": "keeps memory alive",
    "launch.graph:recording": "whether `Arguments` are filled now",
    "launch.lazy:DefinedKernel": "an interface",
    "launch.lazy:lazy_kernel": "names a kernel",
    "machine:": "what this CPU has, and that is in the folder's name",
    "threads:": "Numba's threads are started before a kernel of theirs runs",
}
PREFIX = f"{sources.ALL}.jit."


@pytest.fixture(scope="module")
def known() -> sources.Sources:
    return sources.Sources(folders.read_sources())


def test_every_module_is_on_one_side_with_a_reason(known: sources.Sources) -> None:
    modules = {name.removeprefix(PREFIX) for name in known.trees if name.startswith(PREFIX)}
    assert modules == MAKING.keys() | RUNTIME.keys()
    assert not MAKING.keys() & RUNTIME.keys()
    assert {PREFIX + name for name in RUNTIME} == sources.RUNTIME


def test_kernels_depend_on_all_that_makes_them_and_on_nothing_that_runs_them(
    known: sources.Sources,
) -> None:
    closures = known.closures()
    named = [closures[name] for name in closures if ":" in name and ".ops." in name]
    apart = {"launch", "launch.atomics", "launch.by_numba", "launch.clock", "launch.program"}
    for modules in named:
        assert not modules & sources.RUNTIME
        assert {PREFIX + name for name in MAKING.keys() - apart} <= modules
    for name in ("launch.by_numba", "launch.program", "launch.clock:_clock"):
        assert closures[PREFIX + name] >= {
            PREFIX + "launch.record",
            PREFIX + name.partition(":")[0],
        }
        assert not closures[PREFIX + name] & sources.RUNTIME
    assert PREFIX + "kernel_cache.emit" in closures[PREFIX + "launch.program"]
    assert PREFIX + "launch.program" in closures[PREFIX + "launch.clock:_clock"]


def test_runtime_modules_have_nothing_that_is_compiled(known: sources.Sources) -> None:
    """Nor text of LLVM's language, whose functions begin with `define`."""
    for name in sources.RUNTIME:
        for node in ast.walk(known.trees[name]):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                marks = {one.id for one in node.decorator_list if isinstance(one, ast.Name)}
                assert not marks & {"jit", "njit", "intrinsic", "kernel", "emits"}, name
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert "define " not in node.value, name


def test_each_name_that_kernels_take_from_runtime_modules_is_known(
    known: sources.Sources,
) -> None:
    closures = known.closures()
    making = set[str]().union(*(
        modules for name, modules in closures.items() if ":" in name
    ), *(closures[PREFIX + name] for name in MAKING if name != "launch"))  # fmt: skip
    taken = set[str]()
    for name in making - {PREFIX + "launch"}:
        package = name if name in known.packages else name.rpartition(".")[0]
        for node in ast.walk(known.trees[name]):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    one = ast.ImportFrom(node.module, [alias], node.level) \
                        if isinstance(node, ast.ImportFrom) else ast.Import([alias])  # fmt: skip
                    for module in {*known.named(one, package)} & sources.RUNTIME:
                        whole = module.rpartition(".")[2] == alias.name
                        taken.add(f"{module.removeprefix(PREFIX)}:{'' if whole else alias.name}")
    assert taken == BORDER.keys()
