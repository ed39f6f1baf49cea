"""Progress bars on standard error, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...system.text import one_line
from .notices import notice

if TYPE_CHECKING:
    from ...runtime.bench import Observer
    from ...runtime.context import Progress


def bar(
    what: str, unit: str = "it", total: int | None = None, delay: float = 1.0, **options: Any
) -> Any:
    """A tqdm bar named `what`, where stderr is a terminal and it takes longer than `delay`."""
    from tqdm import tqdm

    return tqdm(
        total=total,
        desc=one_line(what),
        unit=unit,
        unit_scale=unit == "B",
        unit_divisor=1024 if unit == "B" else 1000,
        delay=delay,
        leave=False,
        file=sys.stderr,
        disable=None,
        **options,
    )


@contextmanager
def byte_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Called with bytes done and bytes to do: a bar, on a terminal, where it takes a while."""

    def progress(done: int, total: int) -> None:
        shown.total = total
        shown.update(done - shown.n)

    with bar(what, "B") as shown:
        yield progress


def terminal(each_line_once: bool = False) -> Observer:
    """Tells what a measurement is doing: lines, and bars with the time that is left.

    each_line_once: for work that processes share, who may say the same.
    """
    from tqdm import tqdm

    from ...runtime.bench import Observer

    class Terminal(Observer):
        def __init__(self) -> None:
            self._said: set[str] = set()

        def say(self, line: str) -> None:
            if each_line_once:
                if line in self._said:
                    return
                self._said.add(line)
            with tqdm.external_write_mode(file=sys.stderr):
                notice(line)

        def progress(self, what: str) -> Progress:
            shown = bar(what, bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}")

            def step(done: int, total: int) -> None:
                shown.total = total
                shown.update(done - shown.n)
                if done == total:
                    shown.close()

            return step

    return Terminal()
