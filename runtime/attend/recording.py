"""Recording the choices of a method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .base import BoundAttend
from .selections import Source, selection_file


@contextmanager
def recording(
    attend: BoundAttend, path: str | Path, source: Source, tokens: Sequence[int]
) -> Iterator[None]:
    """Write the choices of a method with `selects` to a file, until the block ends."""
    with selection_file(path, source, tokens) as writer:
        attend.observer = writer
        try:
            yield
        finally:
            attend.observer = None
