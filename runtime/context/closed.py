"""What becomes of a context that is closed."""

from __future__ import annotations

from typing import Any

from .reading.prompt import ContextError

_LEFT = ("tokens", "stats", "close")


class Closed:
    """What `Context.close` makes of its object: it refuses all but `tokens` and `stats`.

    So no method needs a check of its own, later methods are refused too, an open context pays
    nothing for it, and a generation that had begun ends at its next step.
    """

    def __getattribute__(self, name: str) -> Any:
        if name in _LEFT or name.startswith("__"):
            return object.__getattribute__(self, name)
        raise ContextError(
            f"the context is closed and has only its tokens and stats, no {name}: make another one "
            "with model.context(…)"
        )

    def __enter__(self) -> Any:
        raise ContextError("the context is closed: make another one with model.context(…)")

    def close(self) -> None:
        """Nothing is left to close."""
