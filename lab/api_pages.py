"""`make docs`: docs/reference/python.md, of the docstrings of what `import kvarn` offers."""

from __future__ import annotations

import inspect
from pathlib import Path

import kvarn
from kvarn.runtime.methods import Method

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "python.md"
_TOP = """# The Python API

Written by `make docs` from the docstrings of the source. [Using kvarn from
Python](../guides/python.md) shows how the names work together; [Terms](../terms.md) explains the
words.
"""


def page() -> str:
    """The page, in Markdown; without methods that others have registered."""
    items = {name: getattr(kvarn, name) for name in kvarn.__all__}
    shipped = {name: item for name, item in items.items() if item.__module__.startswith("kvarn.")}
    return "\n".join([_TOP, *(_section(name, item) for name, item in shipped.items())])


def _section(name: str, item: object) -> str:
    is_method = isinstance(item, type) and issubclass(item, Method)
    members = list(_members(item)) if isinstance(item, type) and not is_method else []
    return "\n".join([f"## {name}\n", _text(name, item), *members])


def _members(item: type) -> list[str]:
    """The public methods and properties that a class declares itself."""
    named = {name: value for name, value in vars(item).items() if not name.startswith("_")}
    parts: list[str] = []
    for name, value in named.items():
        function = value.fget if isinstance(value, property) else value
        function = getattr(function, "__func__", function)
        if inspect.isfunction(function) and inspect.getdoc(function):
            parts.append(f"### {item.__name__}.{name}\n\n{_text(name, function)}")
    return parts


def _text(name: str, item: object) -> str:
    """How to call it, and its docstring as it is written."""
    shown = f"```text\n{name}{_signature(item)}\n```\n"
    return f"{shown}\n```text\n{inspect.getdoc(item) or ''}\n```\n"


def _signature(item: object) -> str:
    assert callable(item)
    if isinstance(item, type) and issubclass(item, BaseException):
        return "(message)"
    signature = inspect.signature(item)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_default(parameter))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    empty = inspect.Signature.empty
    return str(signature.replace(parameters=parameters, return_annotation=empty))


class _Shown:
    """A default that is written as it says, so that no address of an object gets into the page."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(parameter: inspect.Parameter) -> object:
    value = parameter.default
    if value is inspect.Parameter.empty or isinstance(value, str | int | float | tuple | None):
        return value
    return _Shown(str(value) if " at 0x" not in str(value) else "…")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
