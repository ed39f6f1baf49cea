"""Progress bars on standard error, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .options.model import notice

if TYPE_CHECKING:
    from ..runtime.bench import Observer
    from ..runtime.context.context import Progress


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


def terminal() -> Observer:
    """Tells what a measurement is doing: lines, and bars with the time that is left."""
    from tqdm import tqdm

    from ..runtime.bench import Observer

    class Terminal(Observer):
        def say(self, line: str) -> None:
            with tqdm.external_write_mode(file=sys.stderr):
                notice(line)

        def progress(self, what: str) -> Progress:
            shown = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
            bar = tqdm(
                desc=what, delay=1.0, leave=False, file=sys.stderr, disable=None, bar_format=shown
            )

            def step(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)
                if done == total:
                    bar.close()

            return step

    return Terminal()
