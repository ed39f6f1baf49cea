"""Progress on standard error: bars where that is a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Self

from ...runtime.attend.reads import probed
from ...system.terminal import say
from ...system.text import one_line

if TYPE_CHECKING:
    from ...runtime.bench import Observer
    from ...runtime.context import Context, Progress
    from ...runtime.stats import Stats

TICK_SECONDS, LINE_SECONDS = 1.0, 30.0
"""Between two times that a line is rewritten, and between two lines where stderr is no terminal."""
_WITH_TIME_LEFT = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
_WITH_POSTFIX = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"


def bar(title: str, unit: str = "it", delay: float = 1.0, **options: Any) -> Any:
    """A tqdm bar, where stderr is a terminal and the work takes longer than `delay` seconds."""
    from tqdm import tqdm

    return tqdm(
        desc=one_line(title),
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
def progress_bar(title: str, unit: str, delay: float = 1.0) -> Iterator[Progress]:
    """A bar whose function takes (done, total)."""
    with bar(title, unit, delay) as shown:
        yield partial(_advance, shown)


def _advance(shown: Any, done: int, total: int) -> None:
    shown.total = total
    shown.update(done - shown.n)
    if done == total:
        shown.close()


def byte_bar(title: str) -> AbstractContextManager[Progress]:
    """The bar of a file that is read or written."""
    return progress_bar(title, "B")


def index_context(context: Context) -> None:
    """Index the tokens of the context, as those of a pack that was read with another method."""
    if not context.tokens:  # so that a run without a pack does not import tqdm
        return
    with progress_bar("indexing", "layer") as progress:
        context.index(progress)


class Elapsed:
    """While it is open, shows `text()` and the seconds so far: on a terminal in one line that is
    rewritten each second, elsewhere in a line now and then."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text, self._began = text, time.perf_counter()
        self._last_line, self._bar = self._began, bar("", bar_format="{desc}")
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
            elif now - self._last_line >= LINE_SECONDS:
                self._last_line = now
                say(line)


def terminal(each_line_once: bool = False) -> Observer:
    """Shows what a measurement is doing: lines, and bars with the time that is left.

    each_line_once: for work that processes share, which may report the same line.
    """
    from tqdm import tqdm

    from ...runtime.bench import Observer

    class Terminal(Observer):
        def __init__(self) -> None:
            self._lines: set[str] = set()

        def say(self, line: str) -> None:
            if each_line_once:
                if line in self._lines:
                    return
                self._lines.add(line)
            with tqdm.external_write_mode(file=sys.stderr):
                say(line)

        def progress(self, title: str) -> Progress:
            return partial(_advance, bar(title, bar_format=_WITH_TIME_LEFT))

    return Terminal()


class Pace:
    """Seconds left of a prompt: a token at depth n takes a + b n, fitted to the chunks so far.

    Attention reads all n tokens before a token. So the mean pace of the first chunks promises too
    little: at a tenth of a long prompt a third of its time, or less. rises: whether b counts; for
    many contexts one after the other it does not.
    """

    def __init__(self, rises: bool = True) -> None:
        self._rises = rises
        self._chunks: list[tuple[float, float, int]] = []

    def add(self, depth: int, n_tokens: int, seconds: float) -> None:
        """A chunk of `n_tokens` after `depth` others took `seconds`."""
        self._chunks.append((depth + n_tokens / 2, seconds / n_tokens, n_tokens))

    def left(self, depth: int, n_tokens: int) -> float | None:
        """Seconds for `n_tokens` more after `depth`; None before the second chunk."""
        chunks = self._chunks[1:]  # the first one also compiles and warms caches
        if not chunks:
            return None
        weight = sum(n for *_, n in chunks)
        depths = sum(n * d for d, _, n in chunks) / weight
        costs = sum(n * t for _, t, n in chunks) / weight
        spread = sum(n * (d - depths) ** 2 for d, _, n in chunks)
        rising = sum(n * (d - depths) * (t - costs) for d, t, n in chunks)
        slope = max(0.0, rising / spread) if spread and self._rises else 0.0
        return n_tokens * max(0.0, costs + slope * (depth + n_tokens / 2 - depths))


class ReadingBar:
    """For `Context.prefill` after `n_before` tokens: a bar with the time left where stderr is a
    terminal, else a line now and then. rises: see `Pace`."""

    def __init__(
        self, title: str, n_before: int = 0, stats: Stats | None = None, rises: bool = True
    ) -> None:
        self._title, self._pace = title, Pace(rises)
        self._done = 0
        self._sparse = False  # whether rows have begun to choose what they read
        self._bar: Any = None
        self.begin(n_before, stats)

    def begin(self, n_before: int, stats: Stats | None = None) -> None:
        """The context holds `n_before` tokens; `stats`: those of the context that reads."""
        self.n_before, self._stats = n_before, stats
        self._last = self._last_line = time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` tokens of the prompt have been read; a step that only indexes adds
        none, and its time is not that of tokens."""
        if done == self._done:
            self._last = time.perf_counter()
            return
        if self._bar is None:
            if done == total:  # in one chunk; importing tqdm would take longer than most
                return
            self._bar = bar(self._title, "tok", total=total, bar_format=_WITH_POSTFIX)
        now = time.perf_counter()
        self._pace.add(self.n_before + self._done, done - self._done, now - self._last)
        self._last, self._done = now, done
        notes = ", ".join(part for part in (self._left(total), self._measured()) if part)
        self._bar.set_postfix_str(notes, refresh=False)
        self._bar.update(done - self._bar.n)
        if not sys.stderr.isatty() and now - self._last_line >= LINE_SECONDS and done < total:
            self._last_line = now
            tokens = f"{self._title}: {done:,} of {total:,} tokens"
            say(f"{tokens}, {notes}" if notes else tokens)

    def _left(self, total: int) -> str:
        """How long the rest takes; "" before chunks of its kind were read.

        Sparse prefill reads the first chunks exactly; their pace says nothing of the others.
        """
        layers = self._stats.prompt_layers if self._stats else ()
        if layers and not self._sparse:
            if not any(layer.steps for layer in layers):
                return ""
            self._sparse, self._pace = True, Pace()
        seconds = self._pace.left(self.n_before + self._done, total - self._done)
        return "" if seconds is None else f"about {duration(seconds)} left"

    def _measured(self) -> str:
        """What a probe has found so far; "" without one."""
        measured = probed(self._stats.prompt_layers) if self._stats else []
        if not measured:
            return ""
        return f"output error up to {max(layer.output_error for layer in measured):.3f}"

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def duration(seconds: float) -> str:
    """Seconds as people say them: "45 s", "3 min", "2.5 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:.1f} h"
