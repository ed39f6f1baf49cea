"""A bar on standard error for work that is counted in bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def byte_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Called with bytes done and bytes to do: a bar, on a terminal, where it takes a while."""
    from tqdm import tqdm

    bar = tqdm(
        desc=what,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        delay=1.0,
        leave=False,
        file=sys.stderr,
        disable=None,
    )

    def progress(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    with bar:
        yield progress
