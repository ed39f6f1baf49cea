"""What guesses the tokens of answers: one draft for each answer at a time, used again by others.

A model that drafts has a context for each, which reads what the large one reads. It reads prompts
in slices, as the large one does, so that nobody waits for it longer than for a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...system.spelling import as_flag
from ..draft.base import MOST_TOKENS
from ..draft.request import DraftRequest
from ..store import StoreError

if TYPE_CHECKING:
    from ..context import Context
    from ..draft import Draft
    from .protocol import Start

LEAST_SHARED = 64
"""Tokens of a prompt that a draft must have read, so that an answer takes it rather than a new one:
chats begin alike."""
CHEAP_ROWS = 4
"""Tokens in a pass that cost little more than one: 57 ms against 40, where 8 take 102 (a 1B model
in Q4_0, one Zen 4 core). Beyond them a wrong guess costs as much as a right one gains."""


class Drafts:
    """At most `most` drafts like `first`. Its methods run on the engine thread. tell: called with
    a line when memory has no room for one."""

    def __init__(
        self, first: Draft, most: int, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self._first, self._most, self._n = first, most, 0
        self._free: list[Draft] = []
        self._tell, self._has_warned = tell, False

    def open(self, context: Context, tokens: Sequence[int]) -> Draft | None:
        """The draft of an answer in a context, with all memory that it needs, to be given back;
        None where there is no room for it, as the answer is the same without."""
        draft = self.acquire(tokens)
        try:
            draft.prepare(context)
        except BaseException as error:
            self.release(draft)
            if not isinstance(error, StoreError):
                raise
            if not self._has_warned:
                self._has_warned = True
                self._tell(f"answers may come without a draft: {error}")
            return None
        return draft

    def acquire(self, tokens: Sequence[int]) -> Draft:
        """The draft of an answer to a prompt: of those that are free, the one that has read most of
        it; a new one where it has read little. Has to be given back."""
        free = self._free
        shared = [draft.n_shared(tokens) for draft in free]
        best = max(shared, default=-1)
        if self._n < self._most and best < min(LEAST_SHARED, len(tokens)):
            self._n += 1
            return self._first if self._n == 1 else self._first.sibling()
        return free.pop(shared.index(best))

    def release(self, draft: Draft) -> None:
        draft.stop_at(0)
        self._free.append(draft)


def draft_request(start: Start) -> DraftRequest | None:
    """The draft that a server asks for; no weights are read. Raises `DraftError` for a model that
    cannot guess for the server's."""
    request = DraftRequest.of(start.words, as_flag)
    if request is not None:
        request.check(Path(start.model))
    return request


def draft_room(n_answers: int) -> int:
    """The most guesses of each answer in a pass of so many. Alone, a draft weighs what it costs."""
    return MOST_TOKENS if n_answers == 1 else max(0, CHEAP_ROWS // n_answers - 1)
