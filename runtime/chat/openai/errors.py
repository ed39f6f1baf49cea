"""What is wrong with a request."""

from __future__ import annotations

from ....system.errors import KvarnError
from ....system.text import brief


class RequestError(KvarnError, ValueError):
    """A request that cannot be answered. field: the path of what is wrong in it; "": all of it."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def invalid(field: str, value: object, expected: str) -> RequestError:
    """The error for a field's value."""
    return RequestError(f"{field} is {brief(value)}, expected {expected}", field)
