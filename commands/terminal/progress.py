"""Progress on standard error: bars where that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Self

from ...system.text import one_line
from .notices import notice

if TYPE_CHECKING:
    from ...runtime.bench import Observer
    from ...runtime.context import Progress

TICK_SECONDS, LINE_SECONDS = 1.0, 30.0
"""Between two times that a line is rewritten, and between two lines where stderr is no terminal."""


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


class Elapsed:
    """While it is open, tells `text()` and the seconds since: on a terminal in one line that is
    rewritten each second, elsewhere in a line now and then."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text, self._began = text, time.perf_counter()
        self._said, self._bar = self._began, bar("", bar_format="{desc}")
        self._lock, self._ended = Lock(), Event()
        self._thread = Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._bar.clear()
        self._bar.close()

    def clear(self) -> None:
        """Take the line off the terminal, until it is written again."""
        with self._lock:
            self._bar.clear()

    def _tell(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            now = time.perf_counter()
            line = f"{self._text()}, {now - self._began:.0f} s"
            if not self._bar.disable:
                with self._lock:
                    self._bar.set_description_str(f"kvarn: {line}")
            elif now - self._said >= LINE_SECONDS:
                self._said = now
                notice(line)


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
