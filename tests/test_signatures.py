"""How many parameters functions have: at most 8; kernels, whose arrays are in structures, 12."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .room_sizes import ROOT, budgets

KERNELS = {"kernel", "jit", "triton.jit", "intrinsic"}
"""Decorators of what is compiled."""


def _too_long(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        n = sum(arg.arg not in ("self", "cls") for arg in given)
        decorators = {ast.unparse(d).partition("(")[0] for d in node.decorator_list}
        most = 12 if decorators & KERNELS else 8
        if n > most:
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {n}, at most {most}"


def test_no_function_has_many_parameters() -> None:
    rooms = budgets(ROOT).keys() - {"tests"}
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    assert len(files) > 500
    assert [line for path in files for line in _too_long(path)] == []
