"""Who imports whom: rooms downward only, the laboratory only by itself, no cycle between files.
Imports inside functions count as any others. Those for type checkers never run: they may go in a
circle, so that a class can name the one that uses it, but not to a higher room."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import kvarn

ROOT = Path(kvarn.__file__).resolve().parent
FLOORS = (
    ("system",),
    ("jit",),
    ("ops",),
    ("cuda_ops",),
    ("models",),
    ("runtime",),
    ("convert",),
    ("evals",),
    ("serve",),
    ("compat",),
    ("cluster",),
    ("commands",),
    ("cli",),
    ("__main__",),
    ("lab",),
)
"""From the lowest; rooms on one floor are strangers."""
HEAVY = {"numba", "llvmlite", "torch", "triton"}
"""Packages that only what needs them loads."""
KERNELS = {"kvarn.jit.launch", "kvarn.jit.threads", "kvarn.jit.variant"}
"""What every kernel is made with, the threads that run them, and what asks LLVM for the CPU (unless
the installation has kernels); who imports one is about to run kernels."""

Graph = dict[str, set[str]]


@cache
def modules() -> dict[str, Path]:
    """Dotted name → file, of the package and the laboratory."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] in {"tests", "examples", "build", "dist", "setup"} or parts[0].startswith("."):
            continue
        if parts[0] != "lab":
            parts = ("kvarn", *parts)
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def named(name: str, path: Path, node: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """The modules that one import statement of a module names."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        parts = [*(above if node.level else ()), *([node.module] if node.module else ())]
        base = ".".join(parts)
        for alias in node.names:
            full = f"{base}.{alias.name}"
            yield full if full in known else base


def graph(*, for_types: bool) -> tuple[dict[str, Path], Graph]:
    """Module → the modules of both that it names in its imports, wherever they stand; for_types:
    in those that only type checkers read, too."""
    known = modules()
    edges: Graph = {}
    for name, path in known.items():
        places = places_in(path)
        nodes = places.top + places.inner + (places.for_types if for_types else [])
        found = {target for node in nodes for target in named(name, path, node, known)}
        edges[name] = (found & known.keys()) - {name}
    return known, edges


class Places(ast.NodeVisitor):
    """Import statements of a module: those that run when it is imported, those in functions, and
    those that only type checkers read."""

    def __init__(self, path: Path) -> None:
        self.top: list[ast.AST] = []
        self.inner: list[ast.AST] = []
        self.for_types: list[ast.AST] = []
        self._depth = 0
        self.visit(ast.parse(path.read_text()))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            self.for_types += node.body
            node.body = []
        self.generic_visit(node)

    def visit_Import(self, node: ast.AST) -> None:
        (self.inner if self._depth else self.top).append(node)

    visit_ImportFrom = visit_Import


@cache
def places_in(path: Path) -> Places:
    return Places(path)


def loaded_with(name: str, top: Graph) -> set[str]:
    """All that importing a module imports, the packages around it included."""
    seen, todo = set(), [name]
    while todo:
        if (one := todo.pop()) not in seen:
            seen.add(one)
            parts = one.split(".")
            todo += [".".join(parts[:n]) for n in range(2, len(parts))]
            todo += top.get(one, ())
    return seen


def cycles(edges: Graph) -> list[set[str]]:
    """The sets of modules that reach each other: Kosaraju's algorithm."""
    order: list[str] = []
    seen: set[str] = set()
    for root in edges:
        stack = [(root, iter(sorted(edges[root])))] if root not in seen else []
        seen.add(root)
        while stack:
            name, rest = stack[-1]
            below = next((one for one in rest if one not in seen), None)
            if below is None:
                order.append(stack.pop()[0])
            else:
                seen.add(below)
                stack.append((below, iter(sorted(edges[below]))))
    back: Graph = {name: set() for name in edges}
    for name, targets in edges.items():
        for target in targets:
            back[target].add(name)
    found, left = [], set(edges)
    for root in reversed(order):
        if root not in left:
            continue
        group, todo = set(), [root]
        while todo:
            if (name := todo.pop()) in left:
                left.remove(name)
                group.add(name)
                todo.extend(back[name])
        if len(group) > 1:
            found.append(group)
    return found


def room(name: str) -> str:
    parts = name.split(".")
    return "lab" if parts[0] == "lab" else "".join(parts[1:2])


def test_rooms_import_downward_only() -> None:
    floor = {name: i for i, names in enumerate(FLOORS) for name in names}
    known, edges = graph(for_types=True)
    assert {room(name) for name in known} - {""} == {*floor}
    wrong = [
        f"{name} imports {target}"
        for name, targets in edges.items()
        for target in targets
        if room(name)
        and room(target)  # the package itself only passes names on
        and room(name) != room(target)
        and floor[room(target)] >= floor[room(name)]
    ]
    assert not wrong
    assert not any(room(target) == "lab" for target in edges["kvarn"])


def test_no_files_import_each_other_in_a_circle() -> None:
    _, edges = graph(for_types=False)
    edges["kvarn"] = set()  # which passes names on and is imported for its version
    assert [sorted(cycle) for cycle in cycles(edges)] == []


def test_what_is_cheap_to_import_is_imported_at_the_top() -> None:
    """An import stands in a function only where it loads kernels, Numba or torch, or where it would
    be a circle. Kernels take most of a second of a process that needs none."""
    known = modules()
    places = {name: places_in(path) for name, path in known.items()}
    top = {
        name: {t for node in places[name].top for t in named(name, path, node, known)}
        for name, path in known.items()
    }
    del top["kvarn"]  # whose names are imported on first use
    wrong = []
    for name, path in known.items():
        if name == "kvarn.__main__":  # which answers an interrupt while the rest is imported
            continue
        for node in places[name].inner:
            for target in {*named(name, path, node, known)} & known.keys():
                below = loaded_with(target, top)
                costs = {one.split(".")[0] for one in below} & HEAVY or KERNELS & below
                if not costs and name not in below:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {target}")
    assert not wrong


def test_the_search_finds_cycles() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert sorted(map(sorted, cycles(edges))) == [["a", "b", "c"], ["d", "e"]]
