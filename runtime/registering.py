"""Methods that are not part of kvarn: one of yours is a class, and a line that registers it."""

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
    """Class decorator: lists a method of one of the four axes beside kvarn's, by its `name`.

    From then on this process has it as kvarn.CLASS and in the options of command lines
    (`kvarn.cli.main`). Raises `KvarnError` for a class that is no method, and for a name that
    another one has.
    """
    named = f"registering {method.__module__}.{method.__qualname__}"
    for axis, methods in AXES.items():
        if isinstance(method, type) and issubclass(method, axis):
            has_words = hasattr(method, "name") and hasattr(method, "summary")
            if inspect.isabstract(method) or not has_words:
                raise KvarnError(f"{named}: it lacks a name, a summary or `open`")
            if methods.get(method.name, method) is not method:
                other = methods[method.name]
                raise KvarnError(
                    f"{named}: {other.__module__}.{other.__qualname__} is called {method.name!r} "
                    "too; choose another name"
                )
            methods[method.name] = method
            return method
    raise KvarnError(f"{named}: it derives from none of {', '.join(a.__name__ for a in AXES)}")
