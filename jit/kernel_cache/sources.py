"""The sources of each kernel: an edit discards the machine code that depends on it, and no other.

A kernel depends on the module that defines it and on all modules of jit/ and ops/ that this module
imports, directly or not, at any place, except those of `RUNTIME`. Their syntax trees count, without
docstrings, so that comments change no kernel. Packages around a module only pass names on and do
not count.

What changes code and stands in no source (versions, CPU, variant) is in the folder's name
(`folders`). Reading all trees takes half a second, so their digests are kept beside the kernels:

    sources-<hash of all sources>.digests     lines "kvarn.ops.types <digest>", and of functions
                                              that name a kernel "kvarn.ops.evict.api:_sign …"

Imports no Numba.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath

from ...system.garbage import no_collection
from . import files, folders

ALL = __name__.partition(".")[0]
"""The name of the digest of all sources."""

RUNTIME = frozenset(
    f"{ALL}.jit.{name}"
    for name in (
        *("arena", "bundled", "errors", "forks", "host", "libraries", "machine", "roots"),
        "threads",
        *("kernel_cache", "kernel_cache.elf", "kernel_cache.events", "kernel_cache.files"),
        *("kernel_cache.folders", "kernel_cache.machine_code", "kernel_cache.relocations"),
        *("kernel_cache.sources", "launch.graph", "launch.launcher", "launch.lazy"),
    )
)
"""Modules of jit/ that keep, load, link and call machine code and change none of it: an edit there
discards nothing. tests/jit/test_runtime.py says what kernels may import of them, and why."""

_NAMING = {"lazy_kernel", "lazy_kernels"}  # decorators of functions that name kernels


def digest(name: str, unknown: str | None = None) -> str:
    """Digest of the sources of a module ("kvarn.ops.types") or of a function that names a kernel
    ("kvarn.ops.evict.api:_sign").

    unknown: the answer for other names; None: the hash of all sources.
    """
    known = _digests().get(name, unknown)
    return folders.SOURCES if known is None else known


@cache
def _digests() -> dict[str, str]:
    name = f"sources-{folders.SOURCES}.digests"
    if (kept := files.find(name, _parse)) is not None:
        return kept
    contents = folders.read_sources()
    if folders.hash_of(contents) != folders.SOURCES:
        return {}  # edited since this process began: its imports may be of either version
    with no_collection():
        digests = Sources(contents).digests()
    files.keep(name, "".join(f"{module} {value}\n" for module, value in digests.items()).encode())
    return digests


def _parse(data: bytes) -> dict[str, str]:
    try:
        return dict(line.split(" ", 1) for line in data.decode().splitlines())
    except ValueError as error:
        raise files.Damaged(f"digests of sources: {error}") from error


class Sources:
    """The syntax trees of all sources, without docstrings.

    contents: the sources by their paths in the package ("ops/types.py").
    """

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self.trees = {_module_of(path): _tree(source) for path, source in contents.items()}
        packages = [_module_of(path) for path in contents if path.endswith("__init__.py")]
        self.packages = {name: _bound(self.trees[name]) for name in packages}
        self._imports = {name: self._imported(name, tree) for name, tree in self.trees.items()}
        self._naming = {
            f"{name}:{node.name}": node
            for name, tree in self.trees.items()
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and _names_a_kernel(node)
        }

    def closures(self) -> dict[str, set[str]]:
        """The modules on which each module and each function that names a kernel depends."""
        closures = {name: self._reached({name}) for name in self.trees}
        for full, node in self._naming.items():
            name = full.partition(":")[0]
            around = set() if _stands_alone(node) else {name}
            closures[full] = self._reached((self._imported(name, node) - RUNTIME) | around)
        return closures | {ALL: set(self.trees)}

    def digests(self) -> dict[str, str]:
        """Digests of the closures, and of the functions themselves."""
        trees = {name: _hash(ast.dump(tree)) for name, tree in self.trees.items()}
        functions = {full: ast.dump(node) for full, node in self._naming.items()}
        return {
            name: _hash(
                functions.get(name, ""),
                *(f"{module} {trees[module]}" for module in sorted(modules)),
            )
            for name, modules in self.closures().items()
        }

    def _imported(self, name: str, node: ast.AST) -> set[str]:
        """The modules of these sources that a part of the module `name` imports when it runs."""
        package = name if name in self.packages else name.rpartition(".")[0]
        imported = {module for inner in _running(node) for module in self.named(inner, package)}
        return imported & self.trees.keys()

    def named(self, node: ast.AST, package: str) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                if full in self.trees:
                    yield full
                if full not in self.trees or alias.name in self.packages.get(base, ()):
                    yield base

    def _reached(self, names: set[str]) -> set[str]:
        """The modules, and all that they import but `RUNTIME`."""
        reached, left = set[str](), list(names)
        while left:
            if (name := left.pop()) not in reached:
                reached.add(name)
                left += self._imports[name] - RUNTIME
        return reached


def _module_of(path: str) -> str:
    return ".".join((ALL, *PurePosixPath(path).with_suffix("").parts)).removesuffix(".__init__")


def _tree(source: bytes) -> ast.Module:
    """The syntax tree without docstrings. For invalid Python, a tree that holds the source."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([ast.Expr(ast.Constant(source))], [])
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [statement for statement in body if not _is_text(statement)]
    return tree


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is only a string."""
    constant = node.value if isinstance(node, ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all nodes below it, except those for type checkers."""
    yield node
    for inner in ast.iter_child_nodes(node):
        if not (isinstance(inner, ast.If) and _is_for_type_checkers(inner)):
            yield from _running(inner)


def _is_for_type_checkers(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse


def _names_a_kernel(node: ast.FunctionDef) -> bool:
    return any(isinstance(name, ast.Name) and name.id in _NAMING for name in node.decorator_list)


def _stands_alone(node: ast.FunctionDef) -> bool:
    """Whether a function uses no name of its module but those that it imports itself."""
    parts = [*node.body, *node.args.defaults, *filter(None, node.args.kw_defaults)]
    names = [name for part in parts for name in ast.walk(part) if isinstance(name, ast.Name)]
    used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    return used <= _bound(node) | set(dir(builtins))


def _bound(node: ast.AST) -> set[str]:
    """All names that a part of a module binds, at any place."""
    bound = set[str]()
    for inner in ast.walk(node):
        if isinstance(inner, ast.alias):
            bound.add(inner.asname or inner.name.partition(".")[0])
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
            bound.add(inner.name)
        elif isinstance(inner, ast.arg):
            bound.add(inner.arg)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            bound.add(inner.id)
    return bound


def _hash(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()
