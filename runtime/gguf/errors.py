"""What is wrong with a GGUF file."""

from __future__ import annotations

from os import PathLike

from ...system.errors import KvarnError
from ...system.text import one_line


class GGUFError(KvarnError):
    """`path`: `field`: found `found`, expected `expected` (`hint`: what to do, if anything).

    The first four are attributes, so that a program can tell one fault from another.
    """

    def __init__(
        self, path: str | PathLike[str], field: str, found: str, expected: str, hint: str = ""
    ) -> None:
        self.path = str(path)
        self.field = field
        self.found = found
        self.expected = expected
        ending = f" ({hint})" if hint else ""
        super().__init__(
            f"{one_line(str(path))}: {field}: found {found}, expected {expected}{ending}"
        )
