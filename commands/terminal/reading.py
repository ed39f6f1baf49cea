"""Telling how far a prompt has been read, and how long the rest will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...runtime.attend.reads import probed
from .notices import notice
from .progress import LINE_SECONDS, bar

if TYPE_CHECKING:
    from ...runtime.context import Context, Progress
    from ...runtime.stats import Stats

_LAYOUT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"


class Pace:
    """Seconds left of a prompt: a token at depth n takes a + b n, fitted to the chunks so far.

    Attention reads all n tokens before a token, so that the average of what was read would promise
    too little: at a tenth of a long prompt a third of its time, or less. rises: whether b counts;
    of many contexts one after the other it does not.
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
    """For `Context.prefill` after `held` tokens: a bar with the time left where stderr is a
    terminal, else a line now and then. rises: see `Pace`."""

    def __init__(
        self, what: str, held: int = 0, stats: Stats | None = None, rises: bool = True
    ) -> None:
        self.held, self._what, self._pace, self._stats = held, what, Pace(rises), stats
        self._last = self._said = time.perf_counter()
        self._done = 0
        self._sparse = False  # whether rows have begun to choose what they read
        self._bar: Any = None

    def begin(self, held: int, stats: Stats | None = None) -> None:
        """So many tokens are there already; `stats`: of the context that reads."""
        self.held, self._stats = held, stats
        self._last = self._said = time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` tokens of the prompt have been read."""
        if self._bar is None:
            self._bar = bar(self._what, "tok", total, bar_format=_LAYOUT)
        now = time.perf_counter()
        self._pace.add(self.held + self._done, done - self._done, now - self._last)
        self._last, self._done = now, done
        said = ", ".join(part for part in (self._left(total), self._measured()) if part)
        self._bar.set_postfix_str(said, refresh=False)
        self._bar.update(done - self._bar.n)
        if not sys.stderr.isatty() and now - self._said >= LINE_SECONDS and done < total:
            self._said = now
            tokens = f"{self._what}: {done:,} of {total:,} tokens"
            notice(f"{tokens}, {said}" if said else tokens)

    def _left(self, total: int) -> str:
        """How long the rest takes; "" before chunks of its kind were read.

        Sparse prefill reads the first chunks exactly; their pace says nothing of the others.
        """
        layers = self._stats.prompt_layers if self._stats else ()
        if layers and not self._sparse:
            if not any(layer.steps for layer in layers):
                return ""
            self._sparse, self._pace = True, Pace()
        seconds = self._pace.left(self.held + self._done, total - self._done)
        return "" if seconds is None else f"about {duration(seconds)} left"

    def _measured(self) -> str:
        """What a probe has found so far; "" without one."""
        measured = probed(self._stats.prompt_layers) if self._stats else []
        if not measured:
            return ""
        return f"output error up to {max(one.output_error for one in measured):.3f}"

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def index_held(context: Context) -> None:
    """Index what the context holds, as a pack that was read with another method; with a bar where
    that takes a while."""
    with indexing() as progress:
        context.index(progress)


@contextmanager
def indexing() -> Iterator[Progress]:
    """Called with layers done and layers in all: a bar, on a terminal, where it takes a while."""

    def progress(done: int, total: int) -> None:
        shown.total = total
        shown.update(done - shown.n)
        if done == total:
            shown.close()

    with bar("indexing", "layer") as shown:
        yield progress


def duration(seconds: float) -> str:
    """Seconds as people say them: "45 s", "3 min", "2.5 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:.1f} h"
