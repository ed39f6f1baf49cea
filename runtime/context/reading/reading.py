"""A prompt that is read in slices, between which other contexts may compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine import on_engine
from ...stats import Clock
from .prompt import ContextError

if TYPE_CHECKING:
    from ..context import Context

INDEX_SECONDS = 0.1
"""Of a step that indexes what the method of a context finds without an index, at least a layer."""


class Reading:
    """The reading of a prompt into one context; `Context.prefill` does it to its end.

        reading = context.reading(prompt, 128)
        while not reading.step():
            …                 # others compute; who does not go on has nothing to undo

    slice: the most tokens of a step, None for those of a chunk (`Device.chunk`). A step never goes
    beyond the end of a chunk. What the attend method has not indexed is indexed first, some layers
    in a step, which then reads nothing. Steps of any size give the bits of the prompt read at once.
    Contexts that evict read whole chunks, whatever `slice` says: there, what a token meets depends
    on where passes end. A store that saves is saved when `Saving.is_due_while_reading` says so, and
    at the end.

    n_tokens: of the prompt; done: those of them that were read, which the context holds.
    """

    def __init__(self, context: Context, ids: Sequence[int], slice: int | None) -> None:
        if slice is not None and slice < 1:
            raise ContextError(f"a slice of a prompt has at least one token, not {slice}")
        reader = context.reader
        reader.check(ids)
        reader.begin_prompt(len(ids), anew=False)
        self._context, self._ids, self._first = context, ids, len(context.tokens)
        self._slice = slice if reader.cache.keeps_all else None
        self.n_tokens, self.done = len(ids), 0

    def step(self, slice: int | None = None) -> bool:
        """Read the next slice; returns whether the prompt is read, with the logits of its end.

        slice: the most tokens of this step, where those of all steps are not fixed.

        Raises what `Context.prefill` raises: after `Stopped` the context is as before the step,
        which can be tried again; after `StoreError` it has read the slice. `ContextError` if the
        context was used otherwise since the step before.
        """
        context, reader, clock = self._context, self._context.reader, Clock()
        if len(context.tokens) != self._first + self.done:
            raise ContextError(
                f"cannot go on reading: the context has {len(context.tokens)} tokens, not the "
                f"{self._first + self.done} with which the last step ended"
            )
        if not on_engine(reader.index_some, INDEX_SECONDS):
            context.stats.add_prefill(0, clock)
            return False
        most = slice if self._slice is None and reader.cache.keeps_all else self._slice
        n = reader.next_slice(self.n_tokens - self.done, most)
        if n:
            piece = self._ids[self.done : self.done + n]
            on_engine(reader.step, piece, self.done + n == self.n_tokens)
            self.done += n
        is_read = self.done == self.n_tokens
        if is_read:
            reader.end_text()
        if n and (is_read or context.is_due_while_reading):
            context.commit()
        context.stats.add_prefill(n, clock)
        return is_read
