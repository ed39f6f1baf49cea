"""What a context held at a moment, to which it can return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine import on_engine
from .prompt import ContextError, n_common

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..keep import KVCache
    from ..store.slots import SlotCopy
    from .token_reader import TokenReader


@dataclass(frozen=True)
class Mark:
    """Made by `Context.mark`. cache: the one that was marked; copy: of it, where tokens are
    evicted. hidden: the hidden state of the last token, where it is known."""

    cache: KVCache
    tokens: list[int]
    hidden: NDArray[np.float32] | None
    copy: SlotCopy | None


def mark(cache: KVCache, reader: TokenReader) -> Mark:
    """See `Context.mark`."""
    hidden = None if reader.hidden is None else reader.hidden.copy()
    return Mark(cache, list(reader.tokens), hidden, on_engine(cache.copied))


def return_to(mark: Mark, cache: KVCache, reader: TokenReader) -> None:
    """See `Context.return_to`."""
    if mark.cache is not cache:
        raise ContextError("a mark of another context: a context returns to its own")
    if mark.copy is not None:
        on_engine(cache.put_back, mark.copy)
    elif n_common(mark.tokens, reader.tokens) < len(mark.tokens):
        raise ContextError(
            f"cannot return to {len(mark.tokens)} tokens: the context has been cut since then, and "
            "holds others; read them again"
        )
    reader.forget()
    reader.tokens[:] = mark.tokens
    reader.hidden = None if mark.hidden is None else mark.hidden.copy()
    if mark.copy is not None:
        on_engine(cache.index, len(mark.tokens), None)
