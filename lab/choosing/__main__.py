"""What choosing by signatures and by sketches takes: one token at a time, and rows of a prompt.

    python -m lab.choosing [--depths 32768,131072] [--index hash sketch] [--threads 1,2]

Keys and queries are made up, see `made_up`. Single choices and rows alternate in one process, and
their lists are compared. Prints a markdown table: microseconds for one token and its 32 query heads
(8 KV heads of 64, K and V in q8_0), the least of --rounds and, in brackets, the median; then the
ratio of the least ones. --rows 0 measures single choices alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

from kvarn.jit import threads
from kvarn.system.terminal import show

from .subjects import SUBJECTS, Subject

CHUNK = 128  # rows that sparse prefill chooses for at a time


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    show("| tokens | | threads | one by one, µs | rows, µs | |")
    show("|---:|---|---:|---:|---:|---:|")
    for depth in options.depths:
        for name in options.index:
            subject = SUBJECTS[name](depth, max(options.rows, options.singles), options.k)
            for n in options.threads:
                threads.set_threads(n)
                line = _measure(subject, options.rows, options.singles, options.rounds)
                show(f"| {depth:,} | `{name}` | {n} | {line} |")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.choosing", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--depths", type=_numbers, default=[32_768, 131_072], metavar="N,…")
    add("--index", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    add("--threads", type=_numbers, default=[1], metavar="N,…")
    add("--rows", type=int, default=512, metavar="N", help="0: single choices alone")
    add("--singles", type=int, default=128, metavar="N", help="choices of single tokens")
    add("-k", type=int, default=512, metavar="N", help="tokens for each query head")
    add("--rounds", type=int, default=5, metavar="N")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _measure(subject: Subject, rows: int, singles: int, rounds: int) -> str:
    """The cells of one line; raises SystemExit where rows choose other tokens than single ones."""
    alone, together = [], []
    for i in range(rounds + 1):  # the first one compiles
        alone.append(_timed(lambda: subject.one_by_one(range(singles))) / singles)
        if not rows:
            continue
        together.append(_timed(lambda: _in_chunks(subject, rows)) / rows)
        if i == 0:
            _check(subject, min(rows, singles))
    if not rows:
        return f"{_least(alone)} | |"
    ratio = min(together[1:]) / min(alone[1:])
    return f"{_least(alone)} | {_least(together)} | {ratio:.2f}"


def _in_chunks(subject: Subject, rows: int) -> None:
    for first in range(0, rows, CHUNK):
        subject.rows(range(first, min(first + CHUNK, rows)))


def _check(subject: Subject, rows: int) -> None:
    subject.rows(range(rows))
    for row in range(rows):
        subject.one_by_one(range(row, row + 1))
        for one, many in zip(subject.alone(), subject.lists_of(row), strict=True):
            if not np.array_equal(one, many):
                sys.exit(f"choosing: row {row} chose other tokens than the same query alone")


def _timed(run: Callable[[], object]) -> float:
    begin = perf_counter()
    run()
    return perf_counter() - begin


def _least(seconds: list[float]) -> str:
    own = seconds[1:]
    return f"{min(own) * 1e6:,.0f} ({median(own) * 1e6:,.0f})"


if __name__ == "__main__":
    sys.exit(main())
