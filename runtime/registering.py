"""Methods from outside kvarn: a class, and the decorator that registers it."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from ..system.errors import KvarnError
from .attend import ATTENDS, Attend
from .keep import KEEPS, Keep
from .methods import Method
from .prefill import PREFILLS, Prefill
from .store import STORES, Store

AXES: dict[type[Method], dict[str, Any]] = {
    Attend: ATTENDS,
    Keep: KEEPS,
    Prefill: PREFILLS,
    Store: STORES,
}
M = TypeVar("M", bound=type[Method])


def register(method: M) -> M:
    """Class decorator: adds a method to its axis, by its `name`.

    From then on this process has it as kvarn.CLASS and in the options of command lines
    (`kvarn.cli.main`). Raises `KvarnError` for a class that is not a method, and for a name that
    another method has.
    """
    doing = f"registering {method.__module__}.{method.__qualname__}"
    for axis, methods in AXES.items():
        if isinstance(method, type) and issubclass(method, axis):
            is_described = hasattr(method, "name") and hasattr(method, "summary")
            if inspect.isabstract(method) or not is_described:
                raise KvarnError(f"{doing}: it lacks a name, a summary or `open`")
            if methods.get(method.name, method) is not method:
                other = methods[method.name]
                raise KvarnError(
                    f"{doing}: {other.__module__}.{other.__qualname__} has the name "
                    f"{method.name!r}; choose another"
                )
            methods[method.name] = method
            return method
    raise KvarnError(
        f"{doing}: it derives from none of {', '.join(axis.__name__ for axis in AXES)}"
    )
