"""How users of this process write options, for messages that name them: `--ctx` on a command line,
`n_ctx` in Python, `ctx` in C."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Spelling = Callable[[str], str]
"""Writes an option by its word: "keep_budget" → "--keep-budget"."""
_ARGUMENTS: Mapping[str, str] = {
    "ctx": "n_ctx",
    "method": "attend",
    "kv_type": "store type",
}
"""Word → how Python has it, where otherwise."""


def as_flag(word: str) -> str:
    """How a command line writes an option."""
    return "--kv" if word == "store" else f"--{word.replace('_', '-')}"


def as_argument(word: str) -> str:
    """How Python writes an option: "ctx" → "n_ctx", "keep_budget" → "budget of keep"."""
    axis, _, field = word.partition("_")
    if field and axis in ("keep", "prefill"):
        return f"{field} of {axis}"
    return _ARGUMENTS.get(word, word)


_spelling: Spelling = as_argument


def spelt(word: str) -> str:
    """An option as users of this process write it."""
    return _spelling(word)


def spell(spelling: Spelling) -> Spelling:
    """From now on, write options in this way. Returns how they were written before."""
    global _spelling
    before, _spelling = _spelling, spelling
    return before


def current() -> Spelling:
    """How options are written, for a process that this one starts."""
    return _spelling


@contextmanager
def use_spelling(spelling: Spelling) -> Iterator[None]:
    """In the block, write options in this way."""
    before = spell(spelling)
    try:
        yield
    finally:
        spell(before)
