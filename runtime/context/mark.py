"""What a context held at a moment, to which it can return."""

from __future__ import annotations

from dataclasses import dataclass

from ...ops.arrays import F32
from ..cache import KVCache
from ..engine import on_engine
from ..store.ram.slots import SlotCopy
from ..token_ids import TokenIds
from .reading.prompt import ContextError, n_common
from .reading.token_reader import TokenReader


@dataclass(frozen=True)
class Mark:
    """Made by `Context.mark`. cache: the one that was marked; copy: of it, where tokens are
    evicted. of_prompt: see `TokenReader`. hidden: the hidden state of the last token, where it is
    known. n_apart: see `KVStore`."""

    cache: KVCache
    tokens: TokenIds
    of_prompt: bytes
    hidden: F32 | None
    copy: SlotCopy | None
    n_apart: int | None


def mark(cache: KVCache, reader: TokenReader) -> Mark:
    """See `Context.mark`."""
    if cache.store.states is not None:  # they may be those after a draft that was not taken
        on_engine(reader.prepare)
    hidden = None if reader.hidden is None else reader.hidden.copy()
    cache.store.pin(len(reader.tokens))
    copy = on_engine(cache.copy)
    of_prompt, n_apart = bytes(reader.of_prompt), cache.store.n_apart
    return Mark(cache, TokenIds(reader.tokens), of_prompt, hidden, copy, n_apart)


def return_to(mark: Mark, cache: KVCache, reader: TokenReader) -> None:
    """See `Context.return_to`."""
    if mark.cache is not cache:
        raise ContextError("a mark of another context: a context returns to its own")
    n = len(mark.tokens)
    if mark.copy is not None:
        on_engine(cache.restore, mark.copy)
        if cache.store.states is not None:
            cache.store.states.skip_to(n)
    elif n and (
        n_common(mark.tokens, reader.tokens) < n
        or mark.of_prompt != reader.of_prompt[:n]
        or mark.n_apart != cache.store.n_apart
    ):
        raise ContextError(
            f"cannot return to {n} tokens: the context has been cut since then, and holds others, "
            "or has read them in another way; read them again"
        )
    else:
        on_engine(reader.cut_back, n, n)
    reader.forget()
    reader.tokens[:], reader.of_prompt[:] = mark.tokens, mark.of_prompt
    reader.hidden = None if mark.hidden is None else mark.hidden.copy()
    if mark.copy is not None:
        on_engine(cache.index, len(mark.tokens), slice(None), None)
