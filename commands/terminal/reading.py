"""Telling how far a prompt has been read, and how long the rest will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .notices import notice
from .progress import bar

Progress = Callable[[int, int], None]

LINE_SECONDS = 30.0
"""Between two lines, where stderr is no terminal."""


class Pace:
    """Seconds left of a prompt: a token at depth n takes a + b n, fitted to the chunks so far.

    Attention reads all n tokens before a token, so that the average of what was read would promise
    too little: at a tenth of a long prompt a third of its time, or less.
    """

    def __init__(self) -> None:
        self._chunks: list[tuple[float, float, int]] = []

    def add(self, depth: int, n_tokens: int, seconds: float) -> None:
        """A chunk of `n_tokens` after `depth` others took `seconds`."""
        self._chunks.append((depth + n_tokens / 2, seconds / n_tokens, n_tokens))

    def left(self, depth: int, n_tokens: int) -> float | None:
        """Seconds for `n_tokens` more after `depth`; None before the first chunk."""
        chunks = self._chunks[1:] or self._chunks  # the first one also warms caches
        if not chunks:
            return None
        weight = sum(n for *_, n in chunks)
        depths = sum(n * d for d, _, n in chunks) / weight
        costs = sum(n * t for _, t, n in chunks) / weight
        spread = sum(n * (d - depths) ** 2 for d, _, n in chunks)
        rising = sum(n * (d - depths) * (t - costs) for d, t, n in chunks)
        slope = max(0.0, rising / spread) if spread else 0.0
        return n_tokens * max(0.0, costs + slope * (depth + n_tokens / 2 - depths))


@contextmanager
def reading(what: str, held: int) -> Iterator[Progress]:
    """For `Context.prefill` after `held` tokens: a bar with the time left where stderr is a
    terminal, else a line now and then."""
    pace, last, known = Pace(), [time.perf_counter()] * 2, 0
    with bar(
        what, "tok", bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"
    ) as shown:

        def progress(done: int, total: int) -> None:
            nonlocal known
            now = time.perf_counter()
            pace.add(held + known, done - known, now - last[0])
            last[0], known = now, done
            left = pace.left(held + done, total - done)
            text = "" if left is None else f"about {duration(left)} left"
            shown.total = total
            shown.set_postfix_str(text, refresh=False)
            shown.update(done - shown.n)
            if not sys.stderr.isatty() and now - last[1] >= LINE_SECONDS and done < total:
                last[1] = now
                notice(f"{what}: {done:,} of {total:,} tokens, {text}")

        yield progress


def duration(seconds: float) -> str:
    """Seconds as people say them: "45 s", "3 min", "2.5 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:.1f} h"
